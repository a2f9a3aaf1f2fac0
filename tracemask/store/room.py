"""Room on the disk for a file that will be long, made before its first byte. Knows no content."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from functools import cache

_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE: the file's length stays what was written
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def make_room(handle: int, size: int) -> None:
    """Reserves `size` bytes for an open file: it is written faster, in one piece, and a full disk is known at once.

    A system or file system that cannot reserve is left as it is (posix_fallocate would write zeros there). OSError
    where there is no room.
    """
    reserve = _fallocate()
    if size <= 0 or reserve is None:
        return
    if reserve(handle, _KEEP_SIZE, 0, size) != 0 and (found := ctypes.get_errno()) in _REFUSED:
        raise OSError(found, os.strerror(found))


@cache
def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Linux's fallocate(2): os has only the POSIX one."""
    try:
        found = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return found
