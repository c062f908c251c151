# SPDX-License-Identifier: MIT
"""KV events as vLLM publishes them, for routers: ZeroMQ frames [topic, sequence number, msgpack], with replay.

    publisher = Publisher("tcp://*:5557", replay_endpoint="tcp://*:5558")
    publisher.stored([key], parent=None, token_ids=tokens, block_size=16)

Whoever owns the blocks publishes: a process that manages a pool itself, or an engine's connector. Needs pyzmq and msgpack
(``pip install "omnikv[events]"``).
"""

import threading
import time
from collections import deque
from typing import Any, Deque, Dict, List, Optional, Sequence, Tuple, Union

import msgpack
import zmq

Hash = Union[bytes, int]
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)
# Fields of each event in the order of the array encoding, and those whose absence means None.
_FIELDS: Dict[str, Tuple[str, ...]] = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
                    "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"),
    "BlockRemoved": ("block_hashes", "medium", "group_idx"),
    "AllBlocksCleared": (),
}
_OPTIONAL = {"extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window"}


def encode(events: Sequence[Tuple[str, Dict[str, Any]]], when: float, rank: Optional[int], encoding: str) -> bytes:
    """One batch: [time, events, rank]. ``encoding`` "map" is what vLLM sends since June 2026, "array" what it sent before and
    SGLang does."""
    batch: List[Any] = [when, [_event(name, fields, encoding) for name, fields in events]]
    if rank is not None:
        batch.append(rank)
    return msgpack.packb(batch, use_bin_type=True)


def _event(name: str, fields: Dict[str, Any], encoding: str) -> Any:
    if encoding == "map":
        return {"type": name, **{key: fields.get(key) for key in _FIELDS[name] if key not in _OPTIONAL or fields.get(key) is not None}}
    values = [fields.get(key) for key in _FIELDS[name]]
    while values and values[-1] is None and _FIELDS[name][len(values) - 1] in _OPTIONAL:
        values.pop()
    return [name, *values]


class Publisher:
    """Publishes events in order, each batch with the next sequence number. Any thread; no call waits for a subscriber.

    ``encoding`` is "map" or "array". The last ``buffer_steps`` batches are kept for replay at ``replay_endpoint``: a subscriber
    sends eight bytes, the number of the first batch that it wants (big endian), and gets each as [topic, number, batch], then
    one with number -1. ``endpoint`` is bound where it has a "*" or is ipc or inproc, else connected to. With ``rank`` batches
    name a data-parallel rank.
    """

    def __init__(self, endpoint: str = "tcp://*:5557", *, replay_endpoint: Optional[str] = None, topic: str = "",
                 encoding: str = "map", buffer_steps: int = 10_000, hwm: int = 100_000, rank: Optional[int] = None):
        if encoding not in ("map", "array"):
            raise ValueError(f'encoding is "{encoding}": allowed are map, array')
        if buffer_steps < 1:
            raise ValueError(f"buffer_steps is {buffer_steps}: 1 or more are needed")
        self._topic, self._encoding, self._rank = topic.encode(), encoding, rank
        self._lock = threading.Lock()
        self._batches: Deque[Tuple[int, bytes]] = deque(maxlen=buffer_steps)
        self._next = 0
        self._is_woken = self._is_ending = False
        self._context = zmq.Context()
        self._publish = self._context.socket(zmq.PUB)
        self._publish.set_hwm(hwm)
        self._replay: "Optional[zmq.Socket[bytes]]" = None
        self._wake_out = self._context.socket(zmq.PAIR)
        self._wake_in = self._context.socket(zmq.PAIR)
        try:
            if "*" in endpoint or endpoint.startswith(("ipc://", "inproc://")):
                self._publish.bind(endpoint)
            else:
                self._publish.connect(endpoint)
            if replay_endpoint:
                self._replay = self._context.socket(zmq.ROUTER)
                # It drops what goes beyond: a whole replay must fit.
                self._replay.set(zmq.SNDHWM, buffer_steps + 16)
                self._replay.bind(replay_endpoint)
            self._wake_in.bind("inproc://wake")
            self._wake_out.connect("inproc://wake")
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise OSError(error.errno, f"KV events cannot be published at {endpoint}"
                          f"{' with replay at ' + replay_endpoint if replay_endpoint else ''}: {error.strerror}") from error
        self._thread = threading.Thread(target=self._run, name="omnikv-events", daemon=True)
        self._thread.start()

    def stored(self, block_hashes: Sequence[Hash], *, parent: Optional[Hash], token_ids: Sequence[int], block_size: int,
               medium: str = "CPU", lora_name: Optional[str] = None, extra_keys: Optional[Sequence[Any]] = None,
               group_idx: Optional[int] = None, kv_cache_spec_kind: Optional[str] = None) -> int:
        """Blocks one behind the other are there now: ``token_ids`` are those of all of them. Returns the batch's number."""
        return self.publish([("BlockStored", {
            "block_hashes": list(block_hashes), "parent_block_hash": parent, "token_ids": list(token_ids), "block_size": block_size,
            "lora_id": None, "medium": medium, "lora_name": lora_name, "extra_keys": extra_keys, "group_idx": group_idx,
            "kv_cache_spec_kind": kv_cache_spec_kind})])

    def removed(self, block_hashes: Sequence[Hash], *, medium: str = "CPU", group_idx: Optional[int] = None) -> int:
        """Blocks are gone from ``medium``."""
        return self.publish([("BlockRemoved", {"block_hashes": list(block_hashes), "medium": medium, "group_idx": group_idx})])

    def cleared(self) -> int:
        """Everything is gone."""
        return self.publish([("AllBlocksCleared", {})])

    def publish(self, events: Sequence[Tuple[str, Dict[str, Any]]]) -> int:
        """One batch of events, each a name and its fields. Returns its number."""
        with self._lock:
            if self._is_ending:
                raise ValueError("this Publisher is closed")
            number = self._next
            self._batches.append((number, encode(events, time.time(), self._rank, self._encoding)))
            self._next += 1
            self._wake_locked()
            return number

    def _wake_locked(self) -> None:
        # One message at most is under way, so that sending it never waits.
        if not self._is_woken:
            self._is_woken = True
            self._wake_out.send(b"")

    def _run(self) -> None:
        sent = 0
        poller = zmq.Poller()
        poller.register(self._wake_in, zmq.POLLIN)
        if self._replay is not None:
            poller.register(self._replay, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            if self._wake_in in ready:
                self._wake_in.recv()
            with self._lock:
                if self._wake_in in ready:
                    self._is_woken = False
                is_last = self._is_ending
                # What the buffer has lost by now is missing in the numbers too: subscribers see the gap.
                batches = [batch for batch in self._batches if batch[0] >= sent]
            for number, payload in batches:
                self._publish.send_multipart((self._topic, number.to_bytes(8, "big"), payload))
                sent = number + 1
            if self._replay is not None and self._replay in ready:
                self._answer(self._replay)
            if is_last:
                break

    def _answer(self, replay: "zmq.Socket[bytes]") -> None:
        frames = replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            return
        first = int.from_bytes(frames[2], "big")
        with self._lock:
            batches = [batch for batch in self._batches if batch[0] >= first]
        try:
            for number, payload in batches:
                replay.send_multipart((frames[0], b"", self._topic, number.to_bytes(8, "big"), payload), zmq.NOBLOCK)
            replay.send_multipart((frames[0], b"", b"", END_OF_REPLAY, b""), zmq.NOBLOCK)
        except zmq.ZMQError:  # it has gone, or takes nothing
            pass

    def close(self) -> None:
        """Send what is left, for a second at most, and end."""
        with self._lock:
            if self._is_ending:
                return
            self._is_ending = True
            self._wake_locked()
        self._thread.join(5)
        self._context.destroy(linger=1000)

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
