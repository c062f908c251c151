# SPDX-License-Identifier: GPL-2.0-only
"""KV events: the bytes that routers read, numbers without a gap, replay, and a publisher that nobody can hold up."""

import threading
import time

import msgpack
import pytest
import zmq
from omnikv.kv_events import END_OF_REPLAY, Publisher, encode

STORED = ("BlockStored", {"block_hashes": [b"\x01" * 32, 7], "parent_block_hash": None, "token_ids": [1, 2, 3, 4], "block_size": 2,
                          "lora_id": None, "medium": "CPU", "lora_name": None, "group_idx": 0})


def test_both_encodings_are_those_of_the_field():
    batch = msgpack.unpackb(encode([STORED, ("AllBlocksCleared", {})], 1.5, 3, "map"))
    assert batch == [1.5, [{"type": "BlockStored", "block_hashes": [b"\x01" * 32, 7], "parent_block_hash": None,
                            "token_ids": [1, 2, 3, 4], "block_size": 2, "lora_id": None, "medium": "CPU", "lora_name": None,
                            "group_idx": 0}, {"type": "AllBlocksCleared"}], 3]
    batch = msgpack.unpackb(encode([STORED, ("BlockRemoved", {"block_hashes": [7], "medium": "CPU"})], 1.5, None, "array"))
    assert batch == [1.5, [["BlockStored", [b"\x01" * 32, 7], None, [1, 2, 3, 4], 2, None, "CPU", None, None, 0],
                           ["BlockRemoved", [7], "CPU"]]]
    # By hand: an array of two, a float, one event of a name and two values.
    assert encode([("BlockRemoved", {"block_hashes": [1], "medium": "CPU"})], 2.0, None, "array") == \
        b"\x92\xcb\x40\x00\x00\x00\x00\x00\x00\x00\x91\x93\xacBlockRemoved\x91\x01\xa3CPU"


class Subscriber:
    def __init__(self, where, topic=b""):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.connect(where)
        self.socket.subscribe(topic)

    def take(self, seconds=5):
        assert self.socket.poll(seconds * 1000), "nothing came"
        topic, number, payload = self.socket.recv_multipart()
        return topic, int.from_bytes(number, "big"), msgpack.unpackb(payload)

    def close(self):
        self.context.destroy(linger=0)


@pytest.fixture
def where(tmp_path):
    return f"ipc://{tmp_path}/events", f"ipc://{tmp_path}/replay"


def joined(publisher, subscriber):
    """Publish until the subscriber hears it: subscribing takes a moment."""
    for _ in range(200):
        publisher.cleared()
        if subscriber.socket.poll(25):
            while subscriber.socket.poll(50):
                last = subscriber.take()[1]
            return last
    raise AssertionError("never heard")


def replay(endpoint, request, frames=1):
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    socket.send_multipart([b"", *request])
    found = []
    while socket.poll(2000):
        frame = socket.recv_multipart()
        if frame[2] == END_OF_REPLAY:
            found.append("end")
            break
        found.append(int.from_bytes(frame[2], "big"))
        assert msgpack.unpackb(frame[3])[1]
    context.destroy(linger=0)
    return found


def test_subscribers_hear_everything_in_order(where):
    with Publisher(where[0], topic="kv@host", rank=1) as publisher:
        subscriber = Subscriber(where[0], b"kv@")
        last = joined(publisher, subscriber)
        for i in range(100):
            assert publisher.stored([i], parent=i - 1 if i else None, token_ids=[i] * 4, block_size=4) == last + 1 + i
        for i in range(100):
            topic, number, batch = subscriber.take()
            assert (topic, number, batch[2]) == (b"kv@host", last + 1 + i, 1)
            assert batch[1][0]["block_hashes"] == [i] and batch[1][0]["medium"] == "CPU"
        subscriber.close()


def test_what_was_missed_is_replayed(where):
    with Publisher(where[0], replay_endpoint=where[1], buffer_steps=50) as publisher:
        for i in range(80):
            publisher.removed([i])
        assert replay(where[1], [(70).to_bytes(8, "big")]) == [*range(70, 80), "end"]
        # What the buffer does not have any more is seen to be missing.
        assert replay(where[1], [(0).to_bytes(8, "big")]) == [*range(30, 80), "end"]
        assert replay(where[1], [(80).to_bytes(8, "big")]) == ["end"]
        for hostile in ([b""], [b"x" * 7], [b"x" * 9], [b"a", b"b", b"c"], []):
            assert replay(where[1], hostile) == []
        assert replay(where[1], [b"\xff" * 8]) == ["end"]


def test_nobody_holds_the_publisher_up(where):
    with Publisher(where[0], replay_endpoint=where[1], hwm=10) as publisher:
        slow = Subscriber(where[0])
        joined(publisher, slow)
        begin = time.monotonic()
        threads = [threading.Thread(target=lambda: [publisher.removed([i]) for i in range(2000)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert time.monotonic() - begin < 30
        numbers = [n for n in replay(where[1], [(0).to_bytes(8, "big")]) if n != "end"]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) and len(numbers) >= 8000
        begin = time.monotonic()
        publisher.close()
        assert time.monotonic() - begin < 8
        slow.close()
    with pytest.raises(ValueError, match="closed"):
        publisher.cleared()


def test_mistakes_are_told_with_what_is_allowed(where):
    with pytest.raises(ValueError, match="cbor.*map, array"):
        Publisher(where[0], encoding="cbor")
    with pytest.raises(ValueError, match="buffer_steps is 0"):
        Publisher(where[0], buffer_steps=0)
    with pytest.raises(OSError, match="nonsense"):
        Publisher("nonsense*")
