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
from queue import SimpleQueue
from typing import IO, Any, Protocol

import numpy as np

from tracemask.core.errors import StoreError, UsageError
from tracemask.store.behind import Behind

TEMPORARY = ".tmp-"  # then the final name, a process and a number
_BLOCK, _BLOCKS = 1 << 21, 8  # bytes that are written and hashed at once, and how many such are used in turn
_SYNCED = 4 << 20  # bytes that the disk may be behind while more are made
_serial = itertools.count()


class Sink(Protocol):
    """Bytes on their way to a name: nothing is visible before `commit`, nothing remains after `abort`.

    What is written after `abort` is dropped: Arrow's streams write what they still hold when they are freed.
    """

    def write(self, data: Any) -> int:
        """Takes contiguous memory, free for other use when this returns; returns how many bytes."""
        ...

    @property
    def size(self) -> int:
        """Bytes written so far."""
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

    Pieces are gathered into blocks. Three threads beside the caller's write the blocks, hash them and, while more is
    made, bring to the disk what was written; a file that is small needs none of them. Blocks are few and used in turn,
    so that they are written and hashed while the cores' cache still holds them; and large, so that the threads seldom
    wait for their turn at the interpreter.
    """

    def __init__(self, root: Path, name: str) -> None:
        self._target = root / name
        self._temporary = root / f"{TEMPORARY}{name}.{os.getpid()}.{next(_serial)}"
        self._hash = hashlib.sha256()
        self._block = memoryview(bytearray())
        self._filled = 0  # bytes of the block
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        self._hashing: Behind[memoryview] | None = None
        self._writing: Behind[memoryview] | None = None
        self._syncing: Behind[None] | None = None
        self._unsynced = self.size = 0
        self._dropped = False
        with write_errors(str(self._target)):
            self._file: IO[bytes] = self._temporary.open("wb", buffering=0)

    def write(self, data: Any) -> int:
        view = memoryview(data)
        if self._dropped or not view.nbytes:
            return view.nbytes
        view = view.cast("B")
        size = len(view)
        while len(view) > (room := len(self._block) - self._filled):
            self._block[self._filled :] = view[:room]
            self._filled, view = len(self._block), view[room:]
            self._next_block()
        end = self._filled + len(view)
        self._block[self._filled : end] = view
        self._filled = end
        self.size += size
        return size

    def _next_block(self) -> None:
        """Gives the full block away and takes a free one; waits for one where all are in use."""
        if self._filled:
            self._hand_over(self._block)
        else:
            self._add_blocks(1)
        self._block, self._filled = self._free.get(), 0

    def _add_blocks(self, number: int) -> None:
        memory = np.empty(number * _BLOCK, np.uint8).data
        for start in range(0, len(memory), _BLOCK):
            self._free.put(memory[start : start + _BLOCK])

    def _hand_over(self, block: memoryview) -> None:
        if self._writing is None:
            self._hashing = self._hashing or Behind(self._hash.update, then=self._free.put)
            self._writing = Behind(self._write, then=self._hashing.give)
            self._add_blocks(_BLOCKS - 1)  # at once: large memory has large pages
        with write_errors(str(self._target)):
            self._writing.give(block)

    def _write(self, view: memoryview) -> None:
        done = 0
        while done < len(view):
            done += self._file.write(view[done:]) or 0
        self._unsynced += done
        if self._unsynced >= _SYNCED:
            self._syncing = self._syncing or Behind(lambda _: os.fsync(self._file.fileno()))
            if self._syncing.idle:
                self._syncing.give(None)
                self._unsynced = 0

    def commit(self) -> tuple[int, str]:
        with write_errors(str(self._target)):
            rest = self._block[: self._filled]
            if self._writing is None:
                self._hash.update(rest)
                self._write(rest)
            else:
                self._hand_over(rest)
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
        self._dropped = True
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
        before = len(self._bytes)
        self._bytes += memoryview(data)
        return len(self._bytes) - before

    @property
    def size(self) -> int:
        return len(self._bytes)

    def commit(self) -> tuple[int, str]:
        data = bytes(self._bytes)
        with write_errors(self._where):
            self._fs.pipe_file(self._path, data)
        return len(data), hashlib.sha256(data).hexdigest()

    def abort(self) -> None:
        self._bytes.clear()


class Writable:
    """What pyarrow needs of a Python file to write into a sink."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def write(self, data: Any) -> int:
        return self._sink.write(data)

    def flush(self) -> None:
        """The sink decides when its bytes go on."""

    def close(self) -> None:
        """The sink closes at commit."""

    def writable(self) -> bool:
        return True
