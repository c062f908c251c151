# SPDX-License-Identifier: MIT
"""Pools of host memory."""

from dataclasses import dataclass
from typing import Dict, Optional, Union

from ._native import Handle, check, ffi, lib, new_error, sized, text

_STATES = ("free", "private", "sealed", "meta", "quarantined", "poisoned")
_PAGES = ("2-MiB pages", "transparent huge pages", "4-KiB pages")


def parse_size(size: Union[int, str]) -> int:
    """Bytes of "4G", "512M", "129.5M" or "65536" (powers of 1024). InvalidError says what is wrong with anything else."""
    if isinstance(size, int):
        return size
    out, err = ffi.new("uint64_t *"), new_error()
    check(lib.omnikv_size_parse(text(size), out, err), "omnikv_size_parse", err)
    return out[0]


@dataclass(frozen=True)
class PoolInfo:
    """Exact accounting, in bytes. ``usable`` is the sum of ``by_state``."""
    asked: int
    usable: int
    overhead: int
    free: int
    largest_free: int
    granule_bytes: int
    pages: str
    instance: str
    by_state: Dict[str, int]
    extents: Dict[str, int]


class Pool(Handle):
    """Host memory with one trust domain. ``spec`` is "SIZE", "embedded:SIZE[:FILE]" or "kmod:NAME".

    A pool on FILE survives the process. What the operator should know (small pages, and why) goes to the logger "omnikv".
    """

    def __init__(self, spec: str, *, granule_bytes: int = 0, numa: Optional[str] = None, require_huge: bool = False,
                 populate: bool = True, hugetlb: bool = True):
        numa_text = text(numa)
        flags = ((lib.OMNIKV_POOL_F_REQUIRE_HUGE if require_huge else 0) | (0 if populate else lib.OMNIKV_POOL_F_NO_POPULATE) |
                 (0 if hugetlb else lib.OMNIKV_POOL_F_NO_HUGETLB))
        config = sized("omnikv_pool_config", flags=flags, granule_bytes=granule_bytes, numa=numa_text, notice=lib.okv_py_notice)
        out, err = ffi.new("struct omnikv_pool **"), new_error()
        check(lib.omnikv_pool_open(text(spec), config, out, err), "omnikv_pool_open", err)
        super().__init__(out[0], lib.omnikv_pool_close)

    def info(self) -> PoolInfo:
        return pool_info(self.pointer)


def pool_info(pointer: object) -> PoolInfo:
    c = sized("omnikv_pool_info")
    check(lib.omnikv_pool_info(pointer, c), "omnikv_pool_info")
    return PoolInfo(c.asked_bytes, c.usable_bytes, c.overhead_bytes, c.free_bytes, c.largest_free_bytes, c.granule_bytes,
                    _PAGES[c.page_kind], bytes(c.instance).hex(), dict(zip(_STATES, c.state_bytes)), dict(zip(_STATES, c.nr_extents)))
