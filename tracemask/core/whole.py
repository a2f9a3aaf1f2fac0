"""A file that is there whole or not at all: written beside its name, synced, then renamed. Knows no content."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import IO

_serial = itertools.count()


@contextmanager
def whole_file(path: str | os.PathLike[str]) -> Generator[IO[bytes], None, None]:
    """The bytes to be of `path`, which keeps what it holds until the context ends without an error.

    A link is followed, and rights stay as they are. A device, a pipe or /dev/stdout is written at once: nothing can
    take its place. OSError as the system has it.
    """
    named = os.path.abspath(path)
    if named.startswith(("/dev/", "/proc/")) or not _replaceable(named):
        with open(named, "wb") as file:
            yield file
        return
    target = os.path.realpath(named)
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".tmp-{name}.{os.getpid()}.{next(_serial)}")
    try:
        with open(temporary, "xb") as file:
            with suppress(FileNotFoundError):
                os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync(folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _replaceable(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except OSError:  # not there yet, or not to be seen: making the file says why
        return True


def sync(path: str | os.PathLike[str]) -> None:
    """Brings a file's bytes, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
