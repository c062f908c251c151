# SPDX-License-Identifier: MIT
"""What a failed call raises. Each error is an OSError: ``errno`` is the C library's, ``strerror`` its message."""

import errno
import os


class OmniKVError(OSError):
    """A call of the C library failed. ``errno`` is its code, ``strerror`` says what, why, and what to do."""


class InvalidError(OmniKVError, ValueError):
    """EINVAL: the request can never be right."""


class NoSpaceError(OmniKVError):
    """ENOSPC: the pool is full, and everything in it is in use."""


class QuotaError(OmniKVError):
    """EDQUOT: a bound of the caller's own is reached; what there was before stays."""


class ExistsError(OmniKVError):
    """EEXIST: it is there already."""


class CanceledError(OmniKVError):
    """ECANCELED: it was withdrawn, and nothing comes of it."""


class NoMemoryError(OmniKVError, MemoryError):
    """ENOMEM: host memory or huge pages are short."""


class BusyError(OmniKVError):
    """EBUSY, EAGAIN: somebody else still uses it."""


class ViewError(BusyError, BufferError):
    """EBUSY: a view (memoryview, array, tensor) still shows rows that the call would free, publish or share."""


class StaleError(OmniKVError):
    """ESTALE, ENOENT: it is gone, or never was."""


class LostError(OmniKVError):
    """ENODATA: live KV is lost."""


class NotSupportedError(OmniKVError):
    """EOPNOTSUPP: a right request that this build, kernel or hardware cannot do."""


class DeadlineError(OmniKVError, TimeoutError):
    """ETIME: the deadline passed."""


class DisconnectedError(OmniKVError, ConnectionError):
    """The memory manager of this host cannot be reached."""


class VersionError(ImportError):
    """The package and the C library that the loader found do not fit each other."""


_CLASSES = {
    errno.EINVAL: InvalidError, errno.ENOSPC: NoSpaceError, errno.EDQUOT: QuotaError, errno.ENOMEM: NoMemoryError,
    errno.EEXIST: ExistsError, errno.ECANCELED: CanceledError, errno.EBUSY: BusyError, errno.EAGAIN: BusyError,
    errno.ESTALE: StaleError, errno.ENOENT: StaleError, errno.ENODATA: LostError, errno.EOPNOTSUPP: NotSupportedError,
    errno.ETIME: DeadlineError, errno.ECONNREFUSED: DisconnectedError, errno.ECONNRESET: DisconnectedError,
    errno.EPIPE: DisconnectedError, errno.ENOTCONN: DisconnectedError,
}


def check_bounds(what: str, value: int, least: int, most: int) -> None:
    """InvalidError, with both bounds, unless ``value`` is within them; ``what`` names it with its value."""
    if not least <= value <= most:
        raise InvalidError(errno.EINVAL, f"{what}: {least} to {most} are allowed")


def error_for(code: int, call: str, text: str = "") -> OmniKVError:
    """The error of errno ``code`` from the C function ``call``; ``text`` is the C library's line, where it gave one."""
    return _CLASSES.get(code, OmniKVError)(code, text or f"{call}: {os.strerror(code)}")
