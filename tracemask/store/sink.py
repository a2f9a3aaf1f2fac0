"""Bytes on their way to a file or an object: hashed as they arrive, visible only when whole. Knows no folder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tracemask.core.errors import StoreError, TracemaskError, UsageError
from tracemask.core.whole import sync
from tracemask.store.beside import Beside
from tracemask.store.room import make_room

if TYPE_CHECKING:
    import pyarrow as pa

TEMPORARY = ".tmp-"  # then the final name, a process and a number
_GATHERED = 1 << 16  # bytes: smaller pieces are gathered before they are written, larger ones pass through
_READ = 1 << 20  # bytes that are read back and hashed at once: they fit a core's cache
_FOLLOWED = 4 << 20  # new bytes that are worth a thread's attention
_serial = itertools.count()


class Sink(Protocol):
    """Bytes on their way to a name: nothing is visible before `commit`, nothing remains after `abort`.

    They come through one `stream` or through `write`, not through both.
    """

    def stream(self, *, at_least: int = 0) -> contextlib.AbstractContextManager[pa.NativeFile]:
        """Where Arrow writes; closed at the end of the context. at_least: bytes to come, for which room is made."""
        ...

    def advance(self) -> None:
        """Says that what the stream took so far is final, so that work on it may begin."""
        ...

    def write(self, data: bytes) -> None: ...

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
        what = os.strerror(error.errno) if error.errno else str(error)
        raise StoreError("TM932", where=where, what=what, fix=fix) from error


@contextmanager
def far_errors(where: str) -> Iterator[None]:
    """`write_errors`, and what else a driver of a URL raises: no credentials, no such host, no rights."""
    with write_errors(where):
        try:
            yield
        except (OSError, TracemaskError, NotImplementedError):
            raise
        except Exception as error:  # each driver has classes of its own
            said = f"{type(error).__name__}: {error}"
            raise UsageError(
                "TM932", where=where, what=said, fix="check the URL, its credentials and the network"
            ) from error


class LocalSink:
    """A temporary file beside its final name, made with the first byte: who holds this sink by then can abort it.

    Arrow writes it without this interpreter; two threads follow a long one: what the file holds is hashed, and
    brought to the disk, while more is written.
    """

    def __init__(self, root: Path, name: str) -> None:
        self._target = root / name
        self._temporary = root / f"{TEMPORARY}{name}.{os.getpid()}.{next(_serial)}"
        self._made = self._temporary  # what an abort removes
        self._file: io.FileIO | None = None
        self._stream: pa.NativeFile | None = None
        self._size = 0
        self._digest = _Digest(self._handle)
        self._hashing, self._syncing = Beside(self._digest.read_on), Beside(self._sync)

    def _handle(self) -> int:
        if self._file is None:
            self._file = io.FileIO(self._temporary, "x+")
        return self._file.fileno()

    @contextmanager
    def stream(self, *, at_least: int = 0) -> Iterator[pa.NativeFile]:
        import pyarrow as pa

        with write_errors(str(self._target)):
            self._handle()
            with pa.OSFile(str(self._temporary), "wb") as file, pa.BufferedOutputStream(file, _GATHERED) as stream:
                make_room(self._handle(), at_least)  # opening took what the file had
                self._stream = stream
                yield stream
                self._size = stream.tell()

    def advance(self) -> None:
        assert self._stream is not None
        if self._stream.tell() - self._digest.end >= _FOLLOWED:
            self._stream.flush()
            self._digest.end = self._stream.tell()
            self._hashing.ask()
            self._syncing.ask()

    def _sync(self) -> None:
        os.fsync(self._handle())

    def write(self, data: bytes) -> None:
        self._size += len(data)
        view = memoryview(data)
        with write_errors(str(self._target)):
            while view:
                view = view[os.write(self._handle(), view) :]

    def commit(self) -> tuple[int, str]:
        with write_errors(str(self._target)):
            if (found := os.fstat(self._handle()).st_size) != self._size:
                raise OSError(f"the file has {found} bytes where {self._size} were written")
            self._digest.end = self._size
            if self._hashing.started:
                self._hashing.ask()
            self._syncing.wait()  # the system tells an error of a sync once, and not to the next
            self._sync()
            os.replace(self._temporary, self._target)
            self._made = self._target
            sync(self._target.parent)
            self._hashing.wait()  # a name needs no hash, only its receipt does
            self._digest.read_on()
            self._end()
        return self._size, self._digest.hex()

    def _end(self) -> None:
        try:
            self._hashing.end()
            self._syncing.end()
        finally:
            if self._file is not None:
                self._file.close()

    def abort(self) -> None:
        self._digest.end = 0
        try:
            with contextlib.suppress(OSError):
                self._end()
        finally:
            with contextlib.suppress(OSError):  # a folder that refuses this has refused what came before, and is said
                self._made.unlink()


class _Digest:
    """The sha256 of a file that grows. end: how many bytes of it are final; done: how many were read."""

    def __init__(self, handle: Callable[[], int]) -> None:
        self._handle, self._hash = handle, hashlib.sha256()
        self.done = self.end = 0

    def read_on(self) -> None:
        """Reads until `end`, which may move meanwhile."""
        memory = np.empty(max(0, min(self.end - self.done, _READ)), np.uint8).data
        while (left := self.end - self.done) > 0:
            found = os.preadv(self._handle(), [memory[:left]], self.done)
            if not found:
                raise OSError(f"the file was cut at byte {self.done} of {self.end} while it was written")
            self._hash.update(memory[:found])
            self.done += found

    def hex(self) -> str:
        return self._hash.hexdigest()


class ObjectSink:
    """Bytes held in memory until one put."""

    def __init__(self, fs: Any, path: str, where: str) -> None:
        self._fs, self._path, self._where = fs, path, where
        self._pieces: list[bytes | pa.Buffer] = []

    @contextmanager
    def stream(self, *, at_least: int = 0) -> Iterator[pa.NativeFile]:
        import pyarrow as pa

        with pa.BufferOutputStream() as out:
            yield out
            self._pieces.append(out.getvalue())

    def advance(self) -> None:
        """All goes with the one put."""

    def write(self, data: bytes) -> None:
        self._pieces.append(data)

    def commit(self) -> tuple[int, str]:
        data = b"".join(self._pieces)
        self._pieces.clear()  # a shard is held once
        with far_errors(self._where):
            self._fs.pipe_file(self._path, data)
        return len(data), hashlib.sha256(data).hexdigest()

    def abort(self) -> None:
        self._pieces.clear()
