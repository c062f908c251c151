# SPDX-License-Identifier: MIT
"""The compiled bindings, the handshake with the C library, and what every wrapped object shares."""

import contextlib
import errno
import logging
import os
import threading
import weakref
from collections import Counter
from typing import Any, Callable, Dict, Iterator, Optional

from .errors import BusyError, InvalidError, VersionError, error_for

try:
    from ._omnikv import ffi, lib
except ImportError as error:
    # The loader's own words: which library, and what is wrong with it.
    raise VersionError(f"omnikv: the C library cannot be loaded: {error}") from error

log = logging.getLogger("omnikv")


def handshake(built: str, loaded: str) -> None:
    """Raise VersionError unless a package built against version ``built`` may use a library of version ``loaded``.

    Until version 1 each minor version may change what a call means, so that it must be the same; from then on the
    library may be newer.
    """
    a, b = ([int(n) for n in text.split(".")[:2]] for text in (built, loaded))
    if a[0] != b[0] or (a[1] != b[1] if a[0] == 0 else a[1] > b[1]):
        raise VersionError(f"omnikv: the package was built for version {built} of libomnikv, and the loader found "
                           f"{loaded}; install both of one version, or look for an old libomnikv.so in LD_LIBRARY_PATH")


BUILT_VERSION: str = ffi.string(lib.OMNIKV_VERSION).decode()
LIBRARY_VERSION: str = ffi.string(lib.omnikv_version()).decode()
handshake(BUILT_VERSION, LIBRARY_VERSION)


@ffi.def_extern()
def okv_py_notice(_opaque: Any, line: Any) -> None:
    log.warning("%s", ffi.string(line).decode(errors="replace"))


def text_of(err: Any) -> str:
    return ffi.string(err.text).decode(errors="replace")


def check(ret: int, call: str, err: Any = None, why: Optional[Dict[int, str]] = None) -> int:
    """``ret`` where it is no error; else raises what it stands for, with the text of ``err``, or ``why`` by errno."""
    if ret >= 0:
        return ret
    raise error_for(-ret, call, text_of(err) if err is not None else (why or {}).get(-ret, ""))


def new_error() -> Any:
    return ffi.new("struct omnikv_error *")


def sized(kind: str, **fields: Any) -> Any:
    """An option struct whose first field is its own size."""
    struct = ffi.new(f"struct {kind} *")
    struct.size = ffi.sizeof(f"struct {kind}")
    for name, value in fields.items():
        try:
            setattr(struct, name, value)
        except OverflowError as error:
            raise InvalidError(errno.EINVAL, f"{name} is {value}: {error}") from None
    return struct


def text(value: Optional[str]) -> Any:
    """A C string, or NULL for None. All text that C reads to its end comes by here: a NUL would be that end."""
    if value is None:
        return ffi.NULL
    if "\0" in value:
        raise InvalidError(errno.EINVAL, f"{value!r} has a NUL, where C takes it to end: leave it out")
    return ffi.new("char[]", value.encode())


# Re-entrant: the collector may close a forgotten object in the middle of any line below.
_lock = threading.RLock()
_live: "weakref.WeakSet[Handle]" = weakref.WeakSet()


class Handle:
    """An object of the C library. Closed by ``close()``, ``with``, or with its last reference.

    An object keeps those that it was made from; closing one of these first raises BusyError. After a fork the
    child's copies are closed without touching the parent's.
    """

    def __init__(self, pointer: Any, destroy: Callable[[Any], Any], *parents: "Handle"):
        self._pointer = pointer
        self._destroy = destroy
        self._parents = parents
        self._users = 0        # objects made from this one
        self._nr_calls = 0     # that wait inside the library
        self._exports: "Counter[Any]" = Counter()    # views of its memory, by what they show
        self._is_closing = False
        with _lock:
            for parent in parents:
                parent._users += 1
            _live.add(self)

    @property
    def pointer(self) -> Any:
        """The C pointer; ValueError once closed."""
        if self._pointer is None or self._is_closing:
            raise ValueError(f"this {type(self).__name__} is closed")
        return self._pointer

    @property
    def closed(self) -> bool:
        return getattr(self, "_pointer", None) is None or self._is_closing

    def close(self) -> None:
        """End it. Does nothing the second time. While views of its memory live, it ends with the last of them."""
        with _lock:
            if self.closed:
                return
            if self._nr_calls:
                raise BusyError(errno.EBUSY, f"another thread waits in a call of this {type(self).__name__}; let it end first")
            if self._users:
                raise BusyError(errno.EBUSY, f"this {type(self).__name__} is in use by {self._users} other objects; close them first")
            if self._exports:
                self._is_closing = True
                return
            pointer = self._end_locked()
        ret = self._destroy(pointer)
        if isinstance(ret, int) and ret < 0:
            self._pointer = pointer
            raise error_for(-ret, f"closing a {type(self).__name__}")
        self._release_parents()

    @contextlib.contextmanager
    def _called(self) -> Iterator[Any]:
        """The C pointer for a call that may wait for long. Meanwhile other threads run, and closing it is refused."""
        with _lock:
            pointer = self.pointer
            self._nr_calls += 1
        try:
            yield pointer
        finally:
            with _lock:
                self._nr_calls -= 1

    def _end_locked(self) -> Any:
        pointer, self._pointer = self._pointer, None
        return pointer

    def _end_unfreed(self) -> None:
        """It is no longer the caller's: end it, and leave what it named to who has it now."""
        with _lock:
            self._end_locked()
        self._release_parents()

    def _release_parents(self) -> None:
        parents, self._parents = self._parents, ()
        with _lock:
            for parent in parents:
                parent._users -= 1

    def _export(self, address: int, shows: Any) -> Any:
        """A C pointer whose life counts as a view. ``shows``: what the methods that would take it away need to know."""
        with _lock:
            self._exports[shows] += 1
        return ffi.gc(ffi.cast("char *", address), lambda _pointer: self._unexport(shows))

    def _unexport(self, shows: Any) -> None:
        pointer = None
        with _lock:
            self._exports[shows] -= 1
            if not self._exports[shows]:
                del self._exports[shows]
            if self._is_closing and not self._exports and self._pointer is not None:
                pointer = self._end_locked()
        if pointer is not None:
            self._destroy(pointer)
            self._release_parents()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter may be half gone
            pass


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.RLock()
    for handle in list(_live):
        handle._pointer = None


os.register_at_fork(after_in_child=_after_fork_in_child)
