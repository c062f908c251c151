# SPDX-License-Identifier: MIT
"""The one way to a memory manager, wherever it runs."""

from typing import Any

from .manager import Manager
from .pool import Pool


def connect(where: str, **options: Any) -> Manager:
    """The memory manager of ``where``:

    ``SIZE``, ``embedded:SIZE``, ``embedded:SIZE:FILE``, ``kmod:NAME``
        a pool that this process manages itself (``options``: those of ``Pool``).
    """
    pool = Pool(where, **options)
    manager = Manager(pool)
    manager._owned.append(pool)
    return manager
