# SPDX-License-Identifier: MIT
"""Blocks whose groups several ranks compute: each brings its part, and the block appears whole with the last one, or not at all."""

import errno
from typing import TYPE_CHECKING, Any, Iterable, Optional, Tuple

from ._native import Handle, check, ffi, lib, sized
from .buffer import Buffer, Place, shape_of
from .errors import InvalidError, NotSupportedError, ViewError, check_bounds
from .keys import Keys

if TYPE_CHECKING:
    from .manager import Space

_POSITION_MAX = (1 << 32) - 2
# After any other error the part is no longer the caller's.
_KEPT = (errno.EEXIST, errno.EINVAL, errno.EBUSY, errno.ENOSPC, errno.ENOMEM, errno.EOPNOTSUPP)
_WHY = {
    errno.EEXIST: "the block is cached already: the part is as before, close it",
    errno.EINVAL: "the part does not fit the layout: a group that it has not, or a tail within an entry",
    errno.EBUSY: "a transfer into the part is under way: wait for it first",
    errno.ENOSPC: "too many blocks wait for their parts: try again when some are over",
    errno.ECANCELED: "it contradicts the parts before it, or something came between: all parts of the block are dropped",
    errno.ESTALE: "the block before it is not cached, or the epoch of the part is over: the part is dropped",
    errno.ENOTCONN: "omnikvd does not answer: whether it has the part is not known, and its memory ends with this process",
}


class Part(Handle):
    """One rank's part of a block: zeroed private memory for some groups of the layout. Made by ``Space.part()``.

    Write it by views (``rows()``) or a ring (``pieces()``), then ``commit_join()``. One thread at a time. While a view of it
    lives ``commit_join()`` raises ViewError, and closing takes effect with the last view.
    """

    def __init__(self, space: "Space", groups: Optional[Iterable[int]], nr_tokens: Optional[int], epoch: Optional[int]):
        layout = space.plan._c.layout
        chosen = sorted(range(layout.nr_groups) if groups is None else groups)
        if not chosen or len(set(chosen)) != len(chosen):
            raise InvalidError(errno.EINVAL, f"groups {chosen}: a part brings one or more, each once")
        for group in chosen:
            check_bounds(f"group {group} of the layout", group, 0, layout.nr_groups - 1)
        if nr_tokens is None:
            nr_tokens = space.plan.block_tokens
        check_bounds(f"a part of {nr_tokens} tokens", nr_tokens, 1, space.plan.block_tokens)
        for group in range(layout.nr_groups):
            step = layout.groups[group].tokens_per_entry
            if step and nr_tokens % step:
                raise InvalidError(errno.EINVAL, f"a part of {nr_tokens} tokens ends within an entry of group {group}, which has {step} tokens")
        if not space.manager._is_attached:
            raise NotSupportedError(errno.EOPNOTSUPP, "the manager is this process's own: only processes of one omnikvd make blocks "
                                    "together; commit() a sequence")
        self.space, self.groups, self.nr_tokens = space, tuple(chosen), nr_tokens
        self.epoch = space.epoch() if epoch is None else epoch
        client = lib.omnikv_manager_client(space.manager.pointer)
        extents = ffi.new("struct omnikv_extent[]", len(chosen))
        for i, group in enumerate(chosen):
            ret = lib.omnikv_extent_alloc(client, space.plan._c.groups[group].nr_granules, 1, ffi.NULL, 0, extents + i)
            if ret:
                if i:
                    lib.omnikv_extent_free(client, extents, i)
                check(ret, "omnikv_extent_alloc", why={
                    errno.ENOSPC: "no room for a part beside what is leased: close sequences and matches, or make the pool larger"})

        def free(pointer: Any) -> None:
            lib.omnikv_extent_free(client, pointer, len(chosen))       # what cannot be freed now ends with the client
        super().__init__(extents, free, space)

    def _piece(self, group: int, layer_index: int, plane: int) -> Tuple[int, int, int]:
        """(place of the group's extent, bytes from its begin, rows) of one plane of one stored layer."""
        if group not in self.groups:
            raise InvalidError(errno.EINVAL, f"group {group} is not in this part: it has {', '.join(map(str, self.groups))}")
        info, plan = self.space.plan._c.layout.groups[group], self.space.plan._c.groups[group]
        check_bounds(f"stored layer {layer_index} of group {group}", layer_index, 0, plan.nr_stored - 1)
        check_bounds(f"plane {plane} of group {group}", plane, 0, info.nr_planes - 1)
        rows = self.nr_tokens // info.tokens_per_entry if info.tokens_per_entry else 1
        return self.groups.index(group), layer_index * plan.piece_bytes + plan.plane_off[plane], rows

    def rows(self, group: int, layer: int, plane: int) -> Buffer:
        """The rows of one plane of model layer ``layer``: shape [rows][heads][elems] of the plane's dtype; with a scaled plan
        [rows][bytes]. A state group has one row."""
        index = self.space.plan.layer_index(group, layer)
        _, _, rows = self._piece(group, index, plane)
        is_state = not self.space.plan._c.layout.groups[group].tokens_per_entry
        shape, dtype = shape_of(self.space.plan, group, plane, rows)
        return Buffer(self, Place(group, index, plane, 0, self.nr_tokens, 0, is_state), shape, dtype)

    def pieces(self, group: int, layer_index: int, plane: int, device_off: int = 0) -> Tuple[Any, int]:
        """(C array, 1) of the piece that holds them, of a stored layer, for ``Ring.store()``."""
        check_bounds(f"device_off {device_off}", device_off, 0, (1 << 63) - 1)
        at, offset, rows = self._piece(group, layer_index, plane)
        piece = ffi.new("struct omnikv_piece[]", 1)
        piece[0].extent = self.pointer[at]
        piece[0].extent_off, piece[0].device_off = offset, device_off
        piece[0].bytes = rows * self.space.plan._c.groups[group].row_bytes[plane]
        return piece, 1

    def commit_join(self, key: bytes, *, part: int, nr_parts: int, timeout_ms: int, position: int = 0,
                    parent: Optional[bytes] = None) -> bool:
        """Bring this part of the block ``key``, which is behind ``position`` others, the last of which has the key ``parent``.

        Parts 0 to ``nr_parts`` - 1 come from one process each, and no group from two. All stores into it must be complete.
        True: that was the last one, and lookups find the block, whole. False: others are still to come; where they have not
        within ``timeout_ms`` from the first one on, or one of their processes ends before, all of them are dropped
        (``Space.wait()`` tells). The part is closed then; it is as before after ExistsError (the block is cached already),
        InvalidError, BusyError (a transfer), NoSpaceError and NoMemoryError alone.
        """
        keys, parents = Keys([key]), None if parent is None else Keys([parent])
        check_bounds(f"nr_parts of {nr_parts}", nr_parts, 1, lib.OMNIKV_GROUPS_MAX)
        check_bounds(f"part {part}", part, 0, nr_parts - 1)
        check_bounds(f"timeout_ms of {timeout_ms}", timeout_ms, 1, lib.OMNIKV_PROMISE_MS_MAX)
        check_bounds(f"position {position}", position, 0, _POSITION_MAX)
        if bool(position) != (parent is not None):
            raise InvalidError(errno.EINVAL, f"position {position} {'without' if position else 'with'} a parent: the first block has none, "
                               "and all others one")
        if self._exports:
            raise ViewError(errno.EBUSY, "a view (memoryview, array or tensor) of this part lives, and its rows are to be published: let "
                            "it go first (del; release() of a memoryview)")
        with self._called() as extents:
            crcs = ffi.new("uint32_t[]", len(self.groups))
            for i, group in enumerate(self.groups):
                check(lib.omnikv_plan_block_crc(self.space.plan._c, group, self.nr_tokens, self._base(group), crcs + i),
                      "omnikv_plan_block_crc")
            join = sized("omnikv_join", key=keys._c, parent=ffi.NULL if parents is None else parents._c, position=position,
                         nr_tokens=self.nr_tokens, part=part, nr_parts=nr_parts, groups=sum(1 << group for group in self.groups),
                         extents=extents, crcs=crcs, timeout_ms=timeout_ms, epoch=self.epoch & 0xffffffff)
            ret = lib.omnikv_commit_join(self.space.pointer, join)
        if ret >= 0 or -ret not in _KEPT:
            self._end_unfreed()
        return bool(check(ret, "omnikv_commit_join", why=_WHY))

    def _base(self, group: int) -> Any:
        return lib.omnikv_pool_addr(self.space.manager._pool_pointer(), self.pointer + self.groups.index(group))

    def _is_readonly(self, _block: int) -> bool:
        return False

    def _address(self, place: Place) -> int:
        _, offset, _ = self._piece(place.group, place.layer_index, place.plane)
        return int(ffi.cast("uintptr_t", self._base(place.group))) + offset

    def _view(self, place: Place) -> Any:
        return self._export(self._address(place), place)
