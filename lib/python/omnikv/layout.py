# SPDX-License-Identifier: MIT
"""Layouts (what a model's KV looks like) and plans (how it is cut into blocks)."""

import errno
import json
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple, Union

from ._native import check, ffi, lib, new_error, sized, text, text_of
from .errors import InvalidError, check_bounds


@dataclass(frozen=True)
class Plane:
    """One array of a group: an entry is ``heads`` x ``elems`` elements of ``dtype``, heads outermost."""
    role: str
    dtype: str
    heads: int
    elems: int
    is_replicated: bool


@dataclass(frozen=True)
class Group:
    """Layers that share one shape. ``layers`` are model layer numbers; ``tokens_per_entry`` is 0 for state."""
    kind: str
    layers: Tuple[int, ...]
    planes: Tuple[Plane, ...]
    tokens_per_entry: int
    window: int
    sinks: int


class Layout:
    """What a model's KV looks like. Make one with ``Layout.preset()`` or ``Layout.parse()``."""

    def __init__(self, struct: Any):
        self._c = struct

    @staticmethod
    def presets() -> List[str]:
        """Names of the built-in models."""
        names = lib.omnikv_layout_presets()
        found: List[str] = []
        while names[len(found)] != ffi.NULL:
            found.append(ffi.string(names[len(found)]).decode())
        return found

    @classmethod
    def preset(cls, name: str) -> "Layout":
        """A built-in model. InvalidError, naming what there is, when there is none of that name."""
        struct, err = ffi.new("struct omnikv_layout *"), new_error()
        if lib.omnikv_layout_preset(text(name), struct, err):
            raise InvalidError(errno.EINVAL, text_of(err))
        return cls(struct)

    @classmethod
    def parse(cls, source: Union[str, bytes, Dict[str, Any]]) -> "Layout":
        """From JSON text, or a dict of the same shape. InvalidError names the field, its value and what is allowed."""
        if isinstance(source, dict):
            source = json.dumps(source)
        data = source.encode() if isinstance(source, str) else bytes(source)
        struct, err = ffi.new("struct omnikv_layout *"), new_error()
        check(lib.omnikv_layout_parse(data, len(data), struct, err), "omnikv_layout_parse", err)
        return cls(struct)

    def to_json(self) -> str:
        """Text that ``parse()`` reads back."""
        out = ffi.new("char **")
        check(lib.omnikv_layout_format(self._c, out), "omnikv_layout_format")
        try:
            return ffi.string(out[0]).decode()
        finally:
            lib.free(out[0])

    @property
    def name(self) -> str:
        return ffi.string(self._c.name).decode()

    @property
    def nr_layers(self) -> int:
        """Layers of the model."""
        return self._c.nr_layers

    @property
    def groups(self) -> Tuple[Group, ...]:
        return tuple(self._group(self._c.groups[g]) for g in range(self._c.nr_groups))

    @staticmethod
    def _group(c: Any) -> Group:
        planes = tuple(Plane(ffi.string(lib.omnikv_plane_role_name(p.role)).decode(),
                             ffi.string(lib.omnikv_dtype_name(p.dtype)).decode(), p.heads, p.elems, p.is_replicated)
                       for p in (c.planes[i] for i in range(c.nr_planes)))
        return Group(ffi.string(lib.omnikv_group_kind_name(c.kind)).decode(), tuple(c.layers[0:c.nr_layers]), planes,
                     c.tokens_per_entry, c.window, c.sinks)

    @property
    def token_bytes(self) -> float:
        """Bytes one token needs over all layers of all groups that grow with length."""
        return lib.omnikv_layout_token_bytes(self._c)

    @property
    def sequence_bytes(self) -> int:
        """Bytes one sequence needs whatever its length (recurrent and convolution state)."""
        return lib.omnikv_layout_sequence_bytes(self._c)

    @property
    def identity(self) -> bytes:
        """32 bytes that are equal exactly where layouts give bytes the same meaning."""
        out = ffi.new("uint8_t[32]")
        check(lib.omnikv_layout_identity(self._c, out), "omnikv_layout_identity")
        return bytes(out)

    def diff(self, other: "Layout") -> Optional[str]:
        """The first field of the identity in which two layouts differ, or None."""
        err = new_error()
        ret = lib.omnikv_layout_diff(self._c, other._c, err)
        if ret == -2:  # ENOENT
            return None
        check(ret, "omnikv_layout_diff", err)
        return text_of(err)


@dataclass(frozen=True)
class GroupPlan:
    """One group of a plan, in bytes: entry e of plane p of the i-th stored layer begins at
    i x ``piece_bytes`` + ``plane_off[p]`` + e x ``row_bytes[p]`` of the block's extent."""
    entries: int
    nr_stored: int
    plane_off: Tuple[int, ...]
    row_bytes: Tuple[int, ...]
    piece_bytes: int
    needed_bytes: int
    extent_bytes: int


class Plan:
    """A layout cut into blocks of ``block_tokens`` tokens.

    ``block_tokens`` and ``granule_bytes`` of 0 leave the choice to the planner; ``scale`` divides the bytes of each
    row. InvalidError names the field and both numbers.
    """

    def __init__(self, layout: Layout, block_tokens: int = 0, granule_bytes: int = 0, scale: int = 1):
        config = sized("omnikv_plan_config", block_tokens=block_tokens, granule_bytes=granule_bytes, scale=scale)
        self._c, err = ffi.new("struct omnikv_plan *"), new_error()
        check(lib.omnikv_plan_make(layout._c, config, self._c, err), "omnikv_plan_make", err)
        self.layout = layout

    @property
    def block_tokens(self) -> int:
        """T: tokens of a full block."""
        return self._c.block_tokens

    @property
    def granule_bytes(self) -> int:
        return self._c.granule_bytes

    @property
    def scale(self) -> int:
        return self._c.scale

    @property
    def block_bytes(self) -> int:
        """Bytes of one full block as allocated, all groups that grow with length."""
        return lib.omnikv_plan_block_bytes(self._c)

    @property
    def overhead(self) -> float:
        """Bytes allocated over bytes needed for one full block."""
        return lib.omnikv_plan_overhead(self._c)

    @property
    def groups(self) -> Tuple[GroupPlan, ...]:
        found = []
        for g in range(self._c.layout.nr_groups):
            c, nr_planes = self._c.groups[g], self._c.layout.groups[g].nr_planes
            found.append(GroupPlan(c.entries, c.nr_stored, tuple(c.plane_off[0:nr_planes]), tuple(c.row_bytes[0:nr_planes]),
                                   c.piece_bytes, c.needed_bytes, c.extent_bytes))
        return tuple(found)

    def layer_index(self, group: int, layer: int) -> int:
        """Place of model layer ``layer`` among the stored layers of ``group`` (an alias: its target's)."""
        check_bounds(f"group {group} of the layout", group, 0, self._c.layout.nr_groups - 1)
        check_bounds(f"layer {layer} of the model", layer, 0, self._c.layout.nr_layers - 1)
        ret = lib.omnikv_group_piece_idx(ffi.addressof(self._c.layout.groups[group]), layer)
        if ret == -errno.ENOENT:
            raise InvalidError(errno.EINVAL, f"layer {layer} is in another group than {group}")
        return check(ret, "omnikv_group_piece_idx")
