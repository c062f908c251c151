# SPDX-License-Identifier: GPL-2.0-only
"""What omnikvd tells of its pool's blocks: read as vLLM's subscribers read it, whole after a restart, and held up by nobody."""

import signal
import time

import msgpack
import omnikv
import pytest
import zmq
from conftest import fill
from test_daemon import Daemon, space_of

T = 16
END = (-1).to_bytes(8, "big", signed=True)
FIELDS = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")


class Events:
    """A subscriber, and the answers to its replays."""

    def __init__(self, daemon):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.SUB)
        self.socket.connect(daemon.events)
        self.socket.subscribe(b"kv@")
        self.daemon, self.next = daemon, None

    def replay(self, request=None, frames=1):
        """[(number, batch)] from the first that is asked for, to the end mark."""
        request = [(0).to_bytes(8, "big")] if request is None else request
        socket = self.context.socket(zmq.DEALER)
        socket.connect(self.daemon.replay)
        socket.send_multipart([b"", *request])
        found = []
        while socket.poll(5000 if request and len(request[0]) == 8 else 500):
            empty, topic, number, batch = socket.recv_multipart()
            assert empty == b"" and topic == (b"" if number == END else b"kv@host@model")
            if number == END:
                socket.close(0)
                return found
            found.append((int.from_bytes(number, "big"), msgpack.unpackb(batch)))
        socket.close(0)
        return None

    def told(self, until, seconds=20):
        """All events that were ever told, once ``until(events)`` holds: by replay, whoever heard them or not."""
        end = time.monotonic() + seconds
        while True:
            batches = self.replay()
            assert [number for number, _ in batches] == list(range(len(batches)))
            events = [event for _, batch in batches for event in batch[1]]
            if until(events):
                return events
            assert time.monotonic() < end, [event["type"] for event in events[-20:]]
            time.sleep(0.05)

    def close(self):
        self.context.destroy(linger=0)


def on_media(events):
    """The blocks that a reader of these events takes for cached: by medium and hash, what was told of each."""
    found = {"CPU": {}, "STORAGE": {}}
    for event in events:
        if event["type"] == "AllBlocksCleared":
            found = {"CPU": {}, "STORAGE": {}}
            continue
        (name,) = event["block_hashes"]
        here = found[event["medium"]]
        if event["type"] == "BlockStored":
            assert name not in here and event["block_size"] == T
            # On NVMe it has come after memory gave it up, children first.
            assert event["medium"] == "STORAGE" or event["parent_block_hash"] is None or event["parent_block_hash"] in here
            here[name] = event
        else:
            del here[name]
    return found


def there(events):
    """Of a daemon without a spill store."""
    found = on_media(events)
    assert not found["STORAGE"]
    return found["CPU"]


class EventDaemon(Daemon):
    def __init__(self, where, pool, *more):
        self.events, self.replay, self.more = f"ipc://{where}/events", f"ipc://{where}/replay", more
        super().__init__(where, pool)

    def start(self):
        self.options = [f"--events={self.events}", f"--events-replay={self.replay}", "--events-topic=kv@host@model", *self.more]
        super().start()


@pytest.fixture
def daemon(tmp_path):
    daemon = EventDaemon(str(tmp_path), f"embedded:32M:{tmp_path}/pool", "--tokens=yes")
    yield daemon
    daemon.end()


@pytest.fixture
def events(daemon):
    events = Events(daemon)
    yield events
    events.close()


def commit(space, keys, tokens, note=True):
    tokens = list(tokens)
    if note:
        space.note_tokens(keys, tokens)
    with space.sequence(keys) as seq:
        first = seq.tokens
        seq.append(len(tokens) - first)
        fill(seq, first, len(tokens))
        seq.commit(keys)


def chained(found, keys, tokens):
    """Each block with its parent and its own token ids."""
    tokens, parent = list(tokens), None
    for i, key in enumerate(keys):
        event = found[key]
        assert event["parent_block_hash"] == parent and event["token_ids"] == tokens[i * T:(i + 1) * T]
        parent = key


def test_a_shared_block_is_told_once_with_parent_and_tokens(daemon, events, chain):
    keys = chain.keys(range(96))
    with omnikv.connect(f"unix:{daemon.socket}") as one, omnikv.connect(f"unix:{daemon.socket}") as two, \
            space_of(one) as here, space_of(two) as there_too:
        commit(here, keys[:4], range(64))
        commit(there_too, keys, range(96))
        found = there(events.told(lambda events: len(there(events)) == 6))
    chained(found, keys, range(96))
    # The subscriber heard the same, under the topic, as long as it was there in time.
    while events.socket.poll(500):
        topic, number, batch = events.socket.recv_multipart()
        assert topic == b"kv@host@model" and len(number) == 8
        when, batch = msgpack.unpackb(batch)
        assert abs(when - time.time()) < 60 and all(tuple(event)[:8] == FIELDS for event in batch if event["type"] == "BlockStored")
        assert all(len(event["namespace"]) == 16 for event in batch if event["type"] != "AllBlocksCleared")


def test_tokens_of_blocks_that_nobody_noted_are_empty(daemon, events, chain):
    keys = chain.keys(range(32))
    with omnikv.connect(f"unix:{daemon.socket}") as manager, space_of(manager) as space:
        commit(space, keys, range(32), note=False)
        found = there(events.told(lambda events: len(there(events)) == 2))
        assert [found[key]["token_ids"] for key in keys] == [[], []]
        with pytest.raises(omnikv.InvalidError, match="31 tokens for 2 blocks"):
            space.note_tokens(keys, range(31))


@pytest.mark.parametrize("how", (signal.SIGTERM, signal.SIGKILL))
def test_all_is_told_again_after_a_restart(daemon, events, chain, how):
    prompts = [[1000 * i + j for j in range(80)] for i in range(20)]
    with omnikv.connect(f"unix:{daemon.socket}") as manager, space_of(manager) as space:
        for prompt in prompts:
            commit(space, chain.keys(prompt), prompt)
        before = there(events.told(lambda events: len(there(events)) == 100))
    daemon.end(how)
    daemon.start()
    told = events.told(lambda events: len(there(events)) >= 100)
    assert told[0]["type"] == "AllBlocksCleared"
    after = there(told)
    assert after == before
    for prompt in prompts:
        chained(after, chain.keys(prompt), prompt)
    # Without the setting they are not kept, and what others had kept is given back.
    daemon.end(how)
    daemon.more = ("--tokens=no",)
    daemon.start()
    after = there(events.told(lambda events: len(there(events)) >= 100))
    assert set(after) == set(before) and not any(event["token_ids"] for event in after.values())


def test_what_is_evicted_or_dropped_is_told(tmp_path, chain):
    daemon = EventDaemon(str(tmp_path), f"embedded:8M:{tmp_path}/pool", "--tokens=yes", "--reserve=1M")
    events = Events(daemon)
    try:
        with omnikv.connect(f"unix:{daemon.socket}") as manager, space_of(manager) as space:
            prompts = [[1000 * i + j for j in range(320)] for i in range(30)]
            for prompt in prompts:
                commit(space, chain.keys(prompt), prompt)
            told = events.told(lambda events: len(there(events)) == sum(space.lookup(chain.keys(prompt)) for prompt in prompts))
            removed = sum(event["type"] == "BlockRemoved" for event in told)
            assert removed > 100
            # What the events say is there, is.
            found = there(told)
            for prompt in prompts:
                keys = chain.keys(prompt)
                hit = space.lookup(keys)
                assert [key in found for key in keys] == [True] * hit + [False] * (len(keys) - hit)
                chained(found, keys[:hit], prompt[:hit * T])
            manager.reset()
            events.told(lambda events: not there(events))
    finally:
        events.close()
        daemon.end()


PROMPTS = [[1000 * i + j for j in range(320)] for i in range(30)]


class SpillDaemon(EventDaemon):
    """Of the blocks of PROMPTS memory holds half."""

    def __init__(self, where, spill_size):
        super().__init__(where, f"embedded:8M:{where}/pool", "--tokens=yes", "--reserve=1M", f"--spill={where}/spill",
                         f"--spill-size={spill_size}")


def told_as_it_is(events, space, chain):
    """What the events say, once each prompt hits what they said of it just before: in memory and on NVMe together. What is
    hit comes to memory, and something else leaves it."""
    for _ in range(20):
        right = 0
        for prompt in PROMPTS:
            keys = chain.keys(prompt)
            found = on_media(events.told(lambda _: True))
            told = [key in found["CPU"] or key in found["STORAGE"] for key in keys] + [False]
            with space.match(keys) as match:
                right += match.blocks == told.index(False)
        if right == len(PROMPTS):
            return on_media(events.told(lambda _: True))
    raise AssertionError(f"of {len(PROMPTS)} prompts {right} hit what was told")


@pytest.mark.parametrize("how", (signal.SIGTERM, signal.SIGKILL))
def test_a_block_that_leaves_memory_is_told_to_be_on_nvme(tmp_path, chain, how):
    daemon = SpillDaemon(str(tmp_path), "64M")
    events = Events(daemon)
    try:
        with omnikv.connect(f"unix:{daemon.socket}") as manager, space_of(manager) as space:
            for prompt in PROMPTS:
                commit(space, chain.keys(prompt), prompt)
            left = on_media(events.told(lambda events: len(on_media(events)["STORAGE"]) > 100))["STORAGE"]
            for prompt in PROMPTS:
                with space.match(chain.keys(prompt)) as match:
                    assert match.blocks == len(prompt) // T
            found = told_as_it_is(events, space, chain)
            # What memory has again is still on NVMe too.
            assert not set(left) - set(found["STORAGE"]) and set(found["CPU"]) & set(found["STORAGE"])
            for prompt in PROMPTS:
                keys = chain.keys(prompt)
                for parent, key in zip([None, *keys], keys):
                    assert all(key not in medium or medium[key]["parent_block_hash"] == parent for medium in found.values())
            assert len({event["namespace"] for medium in found.values() for event in medium.values()}) == 1
        daemon.end(how)
        daemon.start()
        with omnikv.connect(f"unix:{daemon.socket}") as manager, space_of(manager) as space:
            again = told_as_it_is(events, space, chain)
            assert not set(found["STORAGE"]) - set(again["STORAGE"])
            manager.raise_epoch()
            events.told(lambda events: not any(on_media(events).values()))
            commit(space, chain.keys(PROMPTS[0]), PROMPTS[0])
            found = told_as_it_is(events, space, chain)
            assert set(found["CPU"]) == set(chain.keys(PROMPTS[0])) and not found["STORAGE"]
    finally:
        events.close()
        daemon.end()


def test_what_nvme_gives_up_is_told(tmp_path, chain):
    """A spill store that holds less than what leaves memory."""
    daemon = SpillDaemon(str(tmp_path), "5M")
    events = Events(daemon)
    try:
        with omnikv.connect(f"unix:{daemon.socket}") as manager, space_of(manager) as space:
            for prompt in PROMPTS:
                commit(space, chain.keys(prompt), prompt)
            told_as_it_is(events, space, chain)
        removed = [event for event in events.told(lambda _: True) if event["type"] == "BlockRemoved" and event["medium"] == "STORAGE"]
        assert len(removed) > 50
    finally:
        events.close()
        daemon.end()


def test_the_array_encoding_is_that_of_before_and_of_sglang(tmp_path, chain):
    daemon = EventDaemon(str(tmp_path), "16M", "--tokens=yes", "--events-encoding=array")
    events = Events(daemon)
    try:
        keys = chain.keys(range(32))
        with omnikv.connect(f"unix:{daemon.socket}") as manager, space_of(manager) as space:
            commit(space, keys, range(32))
            end = time.monotonic() + 20
            while sum(len(batch[1]) for _, batch in events.replay()) < 3 and time.monotonic() < end:
                time.sleep(0.05)
        told = [event for _, batch in events.replay() for event in batch[1]]
        assert told == [["AllBlocksCleared"], ["BlockStored", [keys[0]], None, list(range(16)), 16, None, "CPU", None],
                        ["BlockStored", [keys[1]], keys[0], list(range(16, 32)), 16, None, "CPU", None]]
    finally:
        events.close()
        daemon.end()


def test_vllms_own_decoder_reads_them(daemon, events, chain):
    """The structs of vllm/distributed/kv_events.py, as version 0.32 has them."""
    msgspec = pytest.importorskip("msgspec")
    from typing import Any, List, Optional, Union
    Hash = Union[bytes, int]
    base = msgspec.defstruct("KVCacheEvent", [], omit_defaults=True, tag=True)
    stored = msgspec.defstruct("BlockStored", [
        ("block_hashes", List[Hash]), ("parent_block_hash", Optional[Hash]), ("token_ids", List[int]), ("block_size", int),
        ("lora_id", Optional[int]), ("medium", Optional[str]), ("lora_name", Optional[str]),
        ("extra_keys", Optional[List[Any]], None), ("group_idx", Optional[int], None)], bases=(base,), omit_defaults=True, tag=True)
    removed = msgspec.defstruct("BlockRemoved", [("block_hashes", List[Hash]), ("medium", Optional[str]), ("group_idx", Optional[int], None)],
                                bases=(base,), omit_defaults=True, tag=True)
    cleared = msgspec.defstruct("AllBlocksCleared", [], bases=(base,), tag=True)
    batch = msgspec.defstruct("KVEventBatch", [("ts", float), ("events", List[Union[stored, removed, cleared]]),
                                               ("data_parallel_rank", Optional[int], None)], array_like=True)
    keys = chain.keys(range(32))
    with omnikv.connect(f"unix:{daemon.socket}") as manager, space_of(manager) as space:
        commit(space, keys, range(32))
        manager.reset()
        events.told(lambda events: events[-1]["type"] == "BlockRemoved" and not there(events))
    decoder, found = msgspec.msgpack.Decoder(type=batch), []
    for _, raw in events.replay():
        found += decoder.decode(msgpack.packb(raw)).events
    assert [type(event).__name__ for event in found] == ["AllBlocksCleared", "BlockStored", "BlockStored", "BlockRemoved", "BlockRemoved"]
    assert found[2].parent_block_hash == keys[0] and found[2].token_ids == list(range(16, 32)) and found[4].block_hashes == [keys[0]]


def test_nobody_holds_the_daemon_up(daemon, events, chain):
    """Subscribers that read nothing, hostile replays: requests are answered meanwhile, and memory stays bounded."""
    slow = [Events(daemon) for _ in range(3)]
    readers = []
    for one in slow:
        one.socket.set(zmq.RCVHWM, 1)
        readers.append(one.context.socket(zmq.DEALER))
        readers[-1].set(zmq.RCVHWM, 1)
        readers[-1].connect(daemon.replay)
        for _ in range(100):
            readers[-1].send_multipart([b"", (0).to_bytes(8, "big")])
    for hostile in ([b""], [b"x" * 7], [b"x" * 9], [b"a", b"b", b"c"], [], [b"x" * 5000]):
        assert events.replay(hostile) is None
    with omnikv.connect(f"unix:{daemon.socket}", deadline_ms=5000) as manager, space_of(manager) as space:
        for i in range(60):
            prompt = [1000 * i + j for j in range(320)]
            begin = time.monotonic()
            commit(space, chain.keys(prompt), prompt)
            assert time.monotonic() - begin < 10
    with open(f"/proc/{daemon.child.pid}/status", encoding="ascii") as file:
        anon = next(int(line.split()[1]) for line in file if line.startswith("RssAnon:"))
    assert anon < 200 << 10
    begin = time.monotonic()
    daemon.end()
    assert daemon.child.returncode == 0 and time.monotonic() - begin < 8
    for one in slow:
        one.close()


def test_no_request_for_a_replay_is_forgotten(daemon, events, chain):
    """Requests that come while a long answer is being sent, and nothing happens after them."""
    with omnikv.connect(f"unix:{daemon.socket}") as manager, space_of(manager) as space:
        for i in range(60):
            prompt = [100000 * i + j for j in range(3200)]
            commit(space, chain.keys(prompt), prompt)
    last = events.replay()[-1][0]
    askers = [events.context.socket(zmq.DEALER) for _ in range(8)]
    for asker in askers:
        asker.connect(daemon.replay)
    end = time.monotonic() + 8
    while time.monotonic() < end:
        askers[0].send_multipart([b"", max(0, last - 55).to_bytes(8, "big")])
        assert askers[0].poll(5000)
        for asker in askers[1:]:
            asker.send_multipart([b"", last.to_bytes(8, "big")])
            time.sleep(0.0001)
        for asker in askers:
            number = None
            while number != END:
                assert asker.poll(5000), "no answer"
                number = asker.recv_multipart()[2]
    for asker in askers:
        asker.close(0)


@pytest.mark.parametrize("options, words", [
    (["--events=5557"], ["events", "tcp://ADDRESS:PORT"]), (["--events-replay=tcp://127.0.0.1:1"], ["--events-replay: there is no events"]),
    (["--events=tcp://1.2.3.4:99999"], ["--events", "1.2.3.4:99999", "1 to 65535"]), (["--events=tcp://127.0.0.1"], ["--events", "ADDRESS:PORT"]),
    (["--events=tcp://127.0.0.1:0"], ["1 to 65535"]), (["--events=tcp://127.0.0.1:55x"], ["1 to 65535"]),
    (["--events=tcp://*:"], ["1 to 65535"]), (["--events=ipc://" + "x" * 108], ["at most 107 characters"]),
    (["--events=tcp://192.0.2.1:5557"], ["--events: tcp://192.0.2.1:5557: no address of this host"]),
    (["--events=ipc://x", "--events-replay=tcp://192.0.2.1:5557"], ["--events-replay: tcp://192.0.2.1:5557: no address"]),
    (["--events=ipc://x", "--events-replay=ipc://x"], ["--events-replay: events are published there already"]),
    (["--events=ipc:///nonexistent/x"], ["--events: ipc:///nonexistent/x: its directory is not there"]), (["--events=ipc://x", "--events-encoding=cbor"], ["neither map nor array"]),
    (["--tokens=yes", "--manager=no"], ["--tokens: manager = no"])])
def test_mistakes_are_one_line(tmp_path, options, words):
    import subprocess
    from test_daemon import OMNIKVD
    done = subprocess.run([OMNIKVD, "--pool=8M", f"--socket={tmp_path}/s", *options], capture_output=True, text=True, timeout=60, check=False,
                          cwd=tmp_path)
    # The pool may say that its pages are small.
    lines = [line for line in done.stderr.splitlines() if "4-KiB pages" not in line]
    assert done.returncode in (1, 2) and len(lines) == 1 and all(word in lines[0] for word in words), done.stderr


@pytest.mark.parametrize("is_replay", [False, True])
@pytest.mark.parametrize("what, words", [("file", "no socket of this user's"), ("link", "no socket of this user's"), ("directory", "no socket of this user's"),
                                         ("s", "another process listens"), ("other daemon", "another process listens"), ("dead socket", None)])
def test_endpoints_replace_nothing_of_others(tmp_path, is_replay, what, words):
    import socket
    import subprocess
    from test_daemon import OMNIKVD
    place = tmp_path / what
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    listens = socket.socket(socket.AF_UNIX)
    if what in ("other daemon", "dead socket"):
        listens.bind(str(place))
    if what == "other daemon":
        listens.listen()
    if what == "dead socket":
        listens.close()
    options = [f"--events=ipc://{tmp_path}/other", f"--events-replay=ipc://{place}"] if is_replay else [f"--events=ipc://{place}"]
    child = subprocess.Popen([OMNIKVD, "--pool=8M", f"--socket={tmp_path}/s", *options], stderr=subprocess.PIPE, text=True)
    try:
        if words:
            assert child.wait(60) == 1 and words in child.stderr.read()
        else:
            end = time.monotonic() + 60
            while socket.socket(socket.AF_UNIX).connect_ex(str(place)) and time.monotonic() < end and child.poll() is None:
                time.sleep(0.02)
            child.terminate()
            assert child.wait(20) == 0
    finally:
        child.kill()
        listens.close()
    assert (tmp_path / "file").read_text() == "precious" and (tmp_path / "link").is_symlink()
