"""Bytes on their way to a file or an object: hashed as they are written, visible only when whole. Knows no folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from tracemask.core.errors import StoreError, UsageError
from tracemask.store.behind import Behind

TEMPORARY = ".tmp-"  # then the final name, a process and a number
_SMALL, _GATHERED = 1 << 16, 1 << 20  # bytes: smaller writes are gathered, up to this
_SYNCED = 16 << 20  # bytes that the disk may be behind while more are made
_serial = itertools.count()


class Sink(Protocol):
    """Bytes on their way to a name: nothing is visible before `commit`, nothing remains after `abort`."""

    def write(self, data: Any) -> int: ...
    @property
    def size(self) -> int:
        """Bytes written so far."""
        ...

    def settle(self, size: int) -> None:
        """Waits until the memory of the first `size` bytes is no longer read: it may be written over."""
        ...

    def flush(self) -> None:
        """Starts on what was gathered, without waiting, where that makes `commit` sooner done."""
        ...

    def commit(self) -> tuple[int, str]:
        """Makes the bytes visible under their name; returns (size, sha256)."""
        ...

    def abort(self) -> None: ...


@contextmanager
def write_errors(where: str) -> Iterator[None]:
    """Turns the operating system's refusals into TM932, or TM901 where there is nothing to read."""
    try:
        yield
    except FileNotFoundError as error:
        raise UsageError("TM901", where=where, what="no such file", fix="check the path") from error
    except OSError as error:
        fixes = {errno.ENOSPC: "free some space and run again: finished shards are kept",
                 errno.EDQUOT: "raise the quota and run again: finished shards are kept",
                 errno.EACCES: "check the folder's permissions", errno.EROFS: "choose a writable folder",
                 errno.EEXIST: "a file has this name: give a folder, or a name that is free",
                 errno.ENOTDIR: "part of the path is a file: give a folder, or a name that is free",
                 errno.EISDIR: "a folder has this name: give another"}  # fmt: skip
        fix = fixes.get(error.errno or 0, "check the disk or the connection and run again: finished shards are kept")
        raise StoreError("TM932", where=where, what=error.strerror or str(error), fix=fix) from error


class LocalSink:
    """A temporary file beside its final name.

    Three threads beside the caller's write, hash and, while more is made, bring to the disk what was written; a file
    that is small needs none of them.
    """

    def __init__(self, root: Path, name: str) -> None:
        self._target = root / name
        self._temporary = root / f"{TEMPORARY}{name}.{os.getpid()}.{next(_serial)}"
        self._hash = hashlib.sha256()
        self._small = bytearray()
        self._hashing: Behind | None = None
        self._writing: Behind | None = None
        self._syncing: Behind | None = None
        self._unsynced = self.size = 0
        with write_errors(str(self._target)):
            self._file: IO[bytes] = self._temporary.open("wb", buffering=0)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.size += len(view)
        if len(view) < _SMALL:  # an Arrow batch is hundreds of small pieces
            self._small += view
        else:
            self._give_small()
            self._give(view)
        if len(self._small) >= _GATHERED:
            self._give_small()
        return len(view)

    def flush(self) -> None:
        if self._writing is not None:  # else all of it is small
            self._give_small()

    def _give_small(self) -> None:
        if self._small:
            gathered, self._small = self._small, bytearray()
            self._give(memoryview(gathered))

    def _give(self, view: memoryview) -> None:
        if self._hashing is None or self._writing is None:
            self._hashing, self._writing = Behind(self._hash.update), Behind(self._write)
        with write_errors(str(self._target)):
            self._hashing.give(view)
            self._writing.give(view)

    def _write(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            done += self._file.write(view[done:]) or 0
        self._unsynced += done
        if self._unsynced >= _SYNCED:
            self._syncing = self._syncing or Behind(lambda _: os.fsync(self._file.fileno()))
            if self._syncing.idle:
                self._syncing.give(view[:1])
                self._unsynced = 0

    def settle(self, size: int) -> None:
        with write_errors(str(self._target)):
            for stage in (self._hashing, self._writing):
                if stage is not None:
                    stage.settle(size)

    def commit(self) -> tuple[int, str]:
        with write_errors(str(self._target)):
            if self._writing is None:
                self._hash.update(self._small)
                self._write(memoryview(self._small))
            else:
                self._give_small()
                self._writing.settle()
            if self._syncing is not None:  # begun by the writing: looked for when that is done
                self._syncing.settle()  # the system tells an error of a sync once, and not to the next
            os.fsync(self._file.fileno())
            if self._hashing is not None:
                self._hashing.settle()
            self._end()
            self._file.close()
            os.replace(self._temporary, self._target)
            _sync_folder(self._target.parent)
        return self.size, self._hash.hexdigest()

    def _end(self, *, drop: bool = False) -> None:
        for stage in (self._writing, self._hashing):
            if stage is not None:
                stage.close(drop=drop)
        if self._syncing is not None:  # begun by the writing: looked for when that has ended
            self._syncing.close(drop=drop)
        self._writing = self._hashing = self._syncing = None

    def abort(self) -> None:
        self._end(drop=True)
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class ObjectSink:
    """Bytes held in memory until one put."""

    def __init__(self, fs: Any, path: str, where: str) -> None:
        self._fs, self._path, self._where = fs, path, where
        self._bytes = bytearray()

    def write(self, data: Any) -> int:
        self._bytes += memoryview(data).cast("B")
        return len(data)

    @property
    def size(self) -> int:
        return len(self._bytes)

    def settle(self, size: int) -> None:
        """A write has copied."""

    def flush(self) -> None:
        """One put takes everything."""

    def commit(self) -> tuple[int, str]:
        data = bytes(self._bytes)
        with write_errors(self._where):
            self._fs.pipe_file(self._path, data)
        return len(data), hashlib.sha256(data).hexdigest()

    def abort(self) -> None:
        self._bytes.clear()
