# SPDX-License-Identifier: MIT
"""Rings: transfers between pool and engine memory, run by the library's own thread."""

import errno
import time
from typing import Any, Dict, List, Optional

from ._native import Handle, check, ffi, lib, new_error, sized, text
from .buffer import memory_of
from .errors import DeadlineError, InvalidError, error_for
from .manager import Manager


class _Device(Handle):
    def __init__(self, name: str):
        out, err = ffi.new("struct omnikv_device **"), new_error()
        check(lib.omnikv_device_open(text(name), ffi.NULL, out, err), "omnikv_device_open", err)
        super().__init__(out[0], lib.omnikv_device_close)


class EngineMemory(Handle):
    """Memory of the engine that a ring moves bytes from and to; made by ``Ring.attach()``. Keeps the array alive."""

    def __init__(self, device: _Device, array: Any, address: int, nbytes: int, held: Any):
        if not nbytes:
            raise InvalidError(errno.EINVAL, "engine memory of 0 bytes: there is nothing to move")
        self.nbytes = nbytes
        out = ffi.new("struct omnikv_hbm **")
        check(lib.omnikv_hbm_attach(device.pointer, ffi.cast("void *", address), self.nbytes, out), "omnikv_hbm_attach")
        super().__init__(out[0], lib.omnikv_hbm_destroy, device)
        self.array, self._held = array, held


    def close(self) -> None:
        """Let the array go. BusyError while a transfer uses it."""
        super().close()
        self.array = self._held = None


class Transfer:
    """One queued transfer. ``result`` is the bytes moved or a negative errno, None while it runs."""

    def __init__(self, pieces: Any, nr_pieces: int, memory: EngineMemory, crc: bool):
        self._pieces, self._memory, self.nr_pieces = pieces, memory, nr_pieces
        self._valid = ffi.new("uint64_t[]", (nr_pieces + 63) // 64)
        self._crc = ffi.new("uint32_t[]", nr_pieces) if crc else ffi.NULL
        self.result: Optional[int] = None
        self.in_use = True     # engine memory may still be written or read

    def arrived(self, index: int) -> bool:
        """Did piece ``index`` arrive whole?"""
        return bool(self._valid[index // 64] >> (index % 64) & 1)

    def crc(self, index: int) -> int:
        """CRC32C of piece ``index``, where it arrived and sums were asked for."""
        return self._crc[index]

    def failed(self) -> List[int]:
        """Pieces that did not arrive."""
        return [i for i in range(self.nr_pieces) if not self.arrived(i)]

    def raise_for_result(self) -> None:
        if self.result is not None and self.result < 0:
            raise error_for(-self.result, "transfer")


class Ring(Handle):
    """A queue of transfers for one thread. ``deadline_s`` bounds each: past it, its result is -ETIME.

    ``load`` and ``store`` only queue; ``wait`` submits, and returns when the transfers are over and their memory is free.
    """

    def __init__(self, manager: Manager, *, device: str = "host", entries: int = 256, deadline_s: float = 10.0):
        self._device = _Device(device)
        self._deadline_s = deadline_s
        config = sized("omnikv_ring_config", entries=entries, deadline_ns=int(deadline_s * 1e9))
        out, err = ffi.new("struct omnikv_ring **"), new_error()
        client = lib.omnikv_manager_client(manager.pointer)
        check(lib.omnikv_ring_init(client, self._device.pointer, config, out, err), "omnikv_ring_init", err)
        super().__init__(out[0], lib.omnikv_ring_exit, self._device, manager)
        self._under_way: Dict[int, Transfer] = {}
        self._next = 1

    def attach(self, array: Any) -> EngineMemory:
        """Let the ring move bytes from and to an array: a CPU tensor, a NumPy array, a bytearray. Nothing is copied."""
        return EngineMemory(self._device, array, *memory_of(array))

    def attach_address(self, address: int, nbytes: int, owner: Any) -> EngineMemory:
        """As ``attach()``, for ``nbytes`` bytes at ``address``, which ``owner`` keeps where they are."""
        return EngineMemory(self._device, owner, address, nbytes, owner)

    def load(self, memory: EngineMemory, pieces: Any, nr_pieces: int, *, crc: bool = False) -> Transfer:
        """Queue pool -> engine. ``pieces``: from ``Sequence.pieces()``. The sequence must stay open until it is over."""
        return self._queue(lib.omnikv_prep_load, memory, pieces, nr_pieces, crc)

    def store(self, memory: EngineMemory, pieces: Any, nr_pieces: int) -> Transfer:
        """Queue engine -> pool, into private rows of an open sequence."""
        return self._queue(lib.omnikv_prep_store, memory, pieces, nr_pieces, False)

    def _queue(self, prep: Any, memory: EngineMemory, pieces: Any, nr_pieces: int, crc: bool) -> Transfer:
        until = time.monotonic() + self._deadline_s + 5
        transfer = Transfer(pieces, nr_pieces, memory, crc)
        if not nr_pieces:
            transfer.result, transfer.in_use = 0, False
            return transfer
        sqe = lib.omnikv_get_sqe(self.pointer)
        while sqe == ffi.NULL:
            self._submit()
            if not self._reap(until):
                raise DeadlineError(errno.ETIME, "the ring's queue is full and nothing in it comes to an end")
            sqe = lib.omnikv_get_sqe(self.pointer)
        prep(sqe, memory.pointer, pieces, nr_pieces)
        sqe.user_data, sqe.valid, sqe.crc = self._next, transfer._valid, transfer._crc
        self._under_way[self._next] = transfer
        self._next += 1
        return transfer

    def _submit(self) -> None:
        ret = lib.omnikv_submit(self.pointer)
        if ret != -errno.EAGAIN:
            check(ret, "omnikv_submit")

    def _reap(self, until: float) -> bool:
        """Take one completion; False when none comes in time."""
        out = ffi.new("struct omnikv_cqe **")
        ret = lib.omnikv_wait_cqe(self.pointer, out, max(0, int((until - time.monotonic()) * 1e9)))
        if ret in (-errno.ETIME, -errno.ENODATA):
            return False
        check(ret, "omnikv_wait_cqe")
        cqe = out[0]
        transfer = self._under_way.get(cqe.user_data)
        if transfer is not None:
            if not cqe.flags & lib.OMNIKV_CQE_F_NOTIF:
                transfer.result = cqe.res
            if not cqe.flags & lib.OMNIKV_CQE_F_MORE:
                transfer.in_use = False
                del self._under_way[cqe.user_data]
        lib.omnikv_cqe_seen(self.pointer, cqe)
        return True

    def wait(self, *transfers: Transfer, timeout_s: Optional[float] = None) -> bool:
        """Wait until these (without any: all) are over. Releases the interpreter's lock meanwhile.

        False when memory of one is still in use after ``timeout_s`` (default: the ring's deadline and 5 s): that memory must
        not be used for anything else before a later ``wait`` returns True.
        """
        until = time.monotonic() + (self._deadline_s + 5 if timeout_s is None else timeout_s)
        waited = transfers or tuple(self._under_way.values())
        while any(transfer.in_use for transfer in waited):
            self._submit()
            if not self._reap(until):
                return False
        return True
