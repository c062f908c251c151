# SPDX-License-Identifier: MIT
"""Whole blocks between a pool and an engine's own paged cache: what connectors of engines share. Knows no engine."""

import errno
import queue
import threading
import time
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Sequence as Seq, Set, Tuple

from ._native import ffi, lib
from .connection import connect
from .errors import DeadlineError
from .keys import Keys
from .layout import Layout, Plan
from .manager import Manager, Space
from .transfer import EngineMemory, Ring, Transfer


class StuckError(DeadlineError):
    """A copy has not ended long after its deadline: the engine's memory that it names must not be used for anything else."""


@dataclass(frozen=True)
class PagedLayer:
    """Where one layer of an engine's paged cache lies: block b is ``nr_regions`` dense runs of ``region_bytes`` bytes, the
    r-th at ``base_off`` + b x ``slot_stride`` + r x ``region_stride`` bytes behind ``address``. ``nbytes`` from there on are
    the engine's; ``owner`` keeps them."""
    address: int
    nbytes: int
    owner: Any
    base_off: int
    slot_stride: int
    nr_regions: int
    region_stride: int
    region_bytes: int

    @property
    def block_bytes(self) -> int:
        return self.nr_regions * self.region_bytes


def paged_layer(shape: Seq[int], strides: Seq[int], element_bytes: int, nr_blocks: int) -> Tuple[int, int, int, int]:
    """(slot_stride, nr_regions, region_stride, region_bytes), in bytes, of a tensor that holds ``nr_blocks`` blocks.

    The dimension of that size, else of a multiple of it (equal parts of blocks), counts blocks; the one with the largest
    stride where there are several. Dimensions with larger strides are planes apart. ValueError where a block's bytes are not
    dense, or where there are so few blocks that they could be mistaken for K and V.
    """
    dims = [(size, stride) for size, stride in zip(shape, strides)]
    fits = [i for i, (size, _) in enumerate(dims) if size == nr_blocks] or \
        [i for i, (size, _) in enumerate(dims) if size and size % nr_blocks == 0]
    if not fits or nr_blocks < 3:
        raise ValueError(f"no dimension of a cache of shape {tuple(shape)} counts its {nr_blocks} blocks")
    block = max(fits, key=lambda i: dims[i][1])
    parts, stride = dims[block][0] // nr_blocks, dims[block][1]
    outer = [d for i, d in enumerate(dims) if i != block and d[0] > 1 and d[1] > stride]
    inner = [d for i, d in enumerate(dims) if i != block and d[0] > 1 and d[1] <= stride]
    elements = 1
    for size, _ in inner:
        elements *= size
    span = sum((size - 1) * s for size, s in inner) + 1
    if span != elements or len(outer) > 1 or (parts > 1 and stride != elements):
        raise ValueError(f"the blocks of a cache of shape {tuple(shape)} and strides {tuple(strides)} are not dense")
    nr_regions, region_stride = outer[0] if outer else (1, 0)
    return (stride * parts * element_bytes, nr_regions, region_stride * element_bytes, elements * parts * element_bytes)


def block_layout(nr_layers: int, block_bytes: int, block_tokens: int, is_replicated: bool = False) -> Layout:
    """The layout of opaque blocks: ``block_bytes`` bytes a layer and block, whatever order the engine keeps in them."""
    if block_bytes % block_tokens:
        raise ValueError(f"blocks of {block_bytes} bytes are not whole rows of {block_tokens} tokens")
    plane = {"role": "kv", "dtype": "u8", "heads": 1, "elems": block_bytes // block_tokens, "is_replicated": is_replicated}
    return Layout.parse({"name": "blocks", "nr_layers": nr_layers, "groups": [{"kind": "full", "layers": "all", "planes": [plane]}]})


def block_space(manager: Manager, layout: Layout, block_tokens: int, fields: Dict[str, Any]) -> Space:
    """The namespace of such blocks, with the pool's granule."""
    return manager.space(Plan(layout, block_tokens=block_tokens, granule_bytes=manager.pool_info().granule_bytes), **fields)


class BlockMover:
    """Moves whole blocks between a manager's pool and an engine's layers. One thread."""

    def __init__(self, manager: Manager, layers: List[PagedLayer], deadline_s: float):
        self._ring = Ring(manager, deadline_s=deadline_s)
        self._deadline_s = deadline_s
        self._layers = layers
        memories: Dict[Tuple[int, int], EngineMemory] = {}
        for layer in layers:
            where = (layer.address, layer.nbytes)
            if where not in memories:
                memories[where] = self._ring.attach_address(layer.address, layer.nbytes, layer.owner)
        self._memories = memories

    def close(self) -> None:
        """Waits for transfers under way."""
        self._ring.close()
        for memory in self._memories.values():
            memory.close()

    def _queue(self, seq: Any, slots: Any, first: int, count: int, prep: Any, **options: Any) -> List[Transfer]:
        """One transfer a layer, for blocks [first, first + count)."""
        tokens, transfers = seq.space.plan.block_tokens, []
        for index, layer in enumerate(self._layers):
            found, nr = seq.pieces(0, index, 0, first * tokens, (first + count) * tokens)
            assert nr == count
            pieces = ffi.new("struct omnikv_piece[]", count * layer.nr_regions)
            lib.okv_py_block_pieces(pieces, found, count, slots, layer.base_off, layer.slot_stride, layer.nr_regions,
                                    layer.region_stride, layer.region_bytes)
            transfers.append(prep(self._memories[layer.address, layer.nbytes], pieces, count * layer.nr_regions, **options))
        return transfers

    def _wait(self, transfers: List[Transfer]) -> None:
        if not self._ring.wait(*transfers, timeout_s=self._deadline_s + 1):
            raise StuckError(errno.ETIME, f"a copy has not ended {self._deadline_s + 1:.0f} s after it began")

    def load(self, space: Space, keys: Keys, slots: Seq[int], first: int, verify: bool = True,
             job: Optional["Job"] = None) -> Set[int]:
        """Load blocks [first, len(keys)) of a prompt into ``slots``, one a block. Returns those that did not arrive.

        With ``verify`` each block's CRC32C is that of its commit. Returns when all copies are over. What was asked for
        and is gone from the pool counts as not arrived; in the engine's memory nothing of it is defined then.
        """
        with space.sequence(keys) as seq:
            have = min(seq.tokens // space.plan.block_tokens, len(keys))
            missing = set(range(max(first, have), len(keys)))
            count = have - first
            if count <= 0:
                return missing
            if job:
                job.begin()
            transfers = self._queue(seq, ffi.new("uint32_t[]", list(slots[:count])), first, count, self._ring.load, crc=verify)
            self._wait(transfers)
            for layer, transfer in zip(self._layers, transfers):
                missing.update(first + i // layer.nr_regions for i in transfer.failed())
            if verify:
                missing.update(i for i in range(first, have) if i not in missing and
                               self._sum(transfers, i - first) != seq.block_crc(i))
            if job:
                job.over(missing)      # giving leases up may take a while
            return missing

    def _sum(self, transfers: List[Transfer], block: int) -> int:
        """CRC32C of a block's layers, one after another: what the pool has noted for it."""
        total = None
        for layer, transfer in zip(self._layers, transfers):
            part = lib.okv_py_sum(transfer._crc + block * layer.nr_regions, layer.nr_regions, layer.region_bytes)
            total = part if total is None else lib.omnikv_crc32c_combine(total, part, layer.block_bytes)
        return total or 0

    def save(self, space: Space, keys: Keys, slots: Seq[int], job: Optional["Job"] = None) -> int:
        """Publish the blocks of a prompt that lie in ``slots``, one a key, from its start. Returns how many were not there yet.

        Those that the pool has are neither copied nor changed. ``job`` is told as soon as the slots are free again. NoSpaceError: everything in the pool is in use.
        """
        with space.sequence(keys) as seq:
            first = seq.tokens // space.plan.block_tokens
            count = len(keys) - first
            if count <= 0:
                return 0
            seq.append(count * space.plan.block_tokens)
            if job:
                job.begin()
            transfers = self._queue(seq, ffi.new("uint32_t[]", list(slots[first:first + count])), first, count, self._ring.store)
            self._wait(transfers)
            for transfer in transfers:
                transfer.raise_for_result()
            if job:
                job.over()             # the copies are the pool's now
            return seq.commit(keys)


class Job:
    """What a Courier was asked to do. Its function calls ``begin()`` before it touches the caller's memory, and ``over()`` as
    soon as it does not any more."""

    def __init__(self, function: Callable[["Job"], Any]):
        self._function = function
        self._lock = threading.Lock()
        self._is_begun = self._is_abandoned = False
        self._over = threading.Event()
        self.result: Any = None
        self.error: Optional[BaseException] = None

    def begin(self) -> None:
        """From here on the caller waits however long it takes. DeadlineError where it has gone on without us."""
        with self._lock:
            if self._is_abandoned:
                raise DeadlineError(errno.ETIME, "the caller has gone on")
            self._is_begun = True

    @property
    def is_begun(self) -> bool:
        return self._is_begun

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def over(self, result: Any = None) -> None:
        """The caller may go on, with this result; what is left needs nothing of it."""
        if not self._over.is_set():
            self.result = result
            self._over.set()

    def run(self) -> None:
        with self._lock:
            if self._is_abandoned:
                return
        try:
            self.over(self._function(self))
        except Exception as error:
            self.error = error
            self._over.set()

    def wait(self, seconds: float, copying_s: float) -> bool:
        """False: it had not begun within ``seconds``, and never will."""
        if self._over.wait(seconds):
            return True
        with self._lock:
            if not self._is_begun:
                self._is_abandoned = True
                return False
        return self._over.wait(copying_s)


class Courier:
    """A thread that waits for omnikv in the place of an engine's: whoever asks waits for so long and no longer."""

    def __init__(self, deadline_s: float):
        self._deadline_s = deadline_s
        self._jobs: "queue.SimpleQueue[Optional[Job]]" = queue.SimpleQueue()
        self._under_way: Optional[float] = None
        self._thread = threading.Thread(target=self._run, name="omnikv-courier", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            self._under_way = time.monotonic()
            job.run()
            self._under_way = None

    @property
    def is_late(self) -> bool:
        """Is it waiting for longer than it should?"""
        began = self._under_way
        return began is not None and time.monotonic() - began > self._deadline_s

    def ask(self, function: Callable[[Job], Any]) -> Any:
        """The result of ``function``, or what it raised. DeadlineError: it is not there in time, or an earlier one is late."""
        if self.is_late:
            raise DeadlineError(errno.ETIME, f"no answer within {self._deadline_s * 1000:.0f} ms, and none yet")
        job = Job(function)
        self._jobs.put(job)
        if not job.wait(self._deadline_s, self._deadline_s + 2):
            if job.is_begun:
                raise StuckError(errno.ETIME, f"a copy has not ended {2 * self._deadline_s + 2:.1f} s after it was asked for")
            raise DeadlineError(errno.ETIME, f"no answer within {self._deadline_s * 1000:.0f} ms")
        if job.error is not None:
            raise job.error
        return job.result

    def post(self, function: Callable[[], Any]) -> None:
        """Have it done some time, whatever comes of it."""
        self._jobs.put(Job(lambda _job: function()))

    def close(self) -> None:
        """Ends when what was asked for is done; waits for that no longer than the deadline."""
        self._jobs.put(None)
        self._thread.join(self._deadline_s)


_lock = threading.Lock()
_managers: "weakref.WeakValueDictionary[str, Manager]" = weakref.WeakValueDictionary()


def shared_manager(where: str, **options: Any) -> Manager:
    """``connect(where)``, once a process: the scheduler's and the worker's half of a connector may live in one."""
    with _lock:
        manager = _managers.get(where)
        if manager is None or manager.closed:
            manager = _managers[where] = connect(where, **options)
        return manager
