# SPDX-License-Identifier: MIT
"""The one way to a memory manager, wherever it runs."""

from typing import Any

from .manager import Manager
from .pool import Pool


def connect(where: str, *, deadline_ms: int = 0, **options: Any) -> Manager:
    """The memory manager of ``where``:

    ``unix:``, ``unix:SOCKET``
        that of a running omnikvd, at the system's socket or another: its pool is shared by all processes that connect
        (``options``: those of ``Manager.attach()``).
    ``SIZE``, ``embedded:SIZE``, ``embedded:SIZE:FILE``, ``kmod:NAME``
        a pool that this process manages itself (``options``: those of ``Pool``).
    ``daemon``, ``daemon:SOCKET``
        likewise, the pool of an ``omnikvd --manager=no``. Of an omnikvd that manages its pool, as it does unless told
        otherwise, this is an error: ``unix:SOCKET`` is meant.
    """
    if where.startswith("unix:"):
        return Manager.attach(where[len("unix:"):] or None, deadline_ms=deadline_ms, **options)
    pool = Pool(where, **options)
    manager = Manager(pool)
    manager._owned.append(pool)
    return manager
