"""A folder of small named files, local or in a bucket, whose puts are atomic. Knows no shard.

Local: temporary file in the same folder, fsync, `os.replace`, fsync of the folder. Object stores: a put is atomic.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from tracemask.core.errors import StoreError, UsageError

TEMPORARY = ".tmp-"
_SMALL, _GATHERED = 1 << 16, 1 << 20  # bytes: smaller writes are gathered, up to this
_HASH_BACKLOG = 16  # buffers that wait for their hash
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

    def commit(self) -> tuple[int, str]:
        """Makes the bytes visible under their name; returns (size, sha256)."""
        ...

    def abort(self) -> None: ...


class Folder(Protocol):
    """What the store needs of a place."""

    path: str

    def make(self) -> None: ...
    def names(self) -> list[str]: ...
    def size(self, name: str) -> int | None:
        """Bytes, or None where there is no such file."""
        ...

    def read(self, name: str) -> bytes: ...
    def sink(self, name: str) -> Sink: ...
    def remove(self, name: str) -> None: ...
    def local(self, name: str) -> str | None:
        """The file's path where it can be memory-mapped."""
        ...

    def sha256(self, name: str) -> str: ...


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """The folder at `path`: a local path, or any fsspec URL (s3://bucket/key, memory://name)."""
    text = os.fspath(path)
    if "://" not in text:
        return LocalFolder(text)
    if text.startswith("file://"):
        return LocalFolder(text.removeprefix("file://"))
    return ObjectFolder(text)


def put(folder: Folder, name: str, data: bytes) -> str:
    """Writes `data` under `name` atomically; returns its sha256."""
    sink = folder.sink(name)
    try:
        sink.write(data)
        return sink.commit()[1]
    except BaseException:
        sink.abort()
        raise


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
                 errno.EACCES: "check the folder's permissions", errno.EROFS: "choose a writable folder"}  # fmt: skip
        fix = fixes.get(error.errno or 0, "check the disk or the connection and run again: finished shards are kept")
        raise StoreError("TM932", where=where, what=error.strerror or str(error), fix=fix) from error


class LocalFolder:
    """A directory of a file system with atomic rename."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._root = Path(path)

    def make(self) -> None:
        with write_errors(self.path):
            self._root.mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        with write_errors(self.path):
            return sorted(os.listdir(self._root)) if self._root.is_dir() else []

    def size(self, name: str) -> int | None:
        try:
            return (self._root / name).stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def read(self, name: str) -> bytes:
        with write_errors(str(self._root / name)):
            return (self._root / name).read_bytes()

    def sink(self, name: str) -> Sink:
        return _LocalSink(self._root, name)

    def remove(self, name: str) -> None:
        with write_errors(str(self._root / name)):
            (self._root / name).unlink(missing_ok=True)

    def local(self, name: str) -> str | None:
        return str(self._root / name)

    def sha256(self, name: str) -> str:
        with write_errors(str(self._root / name)), open(self._root / name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


class _LocalSink:
    """A temporary file beside its final name, hashed as it is written."""

    def __init__(self, root: Path, name: str) -> None:
        self._target = root / name
        self._temporary = root / f"{TEMPORARY}{name}.{os.getpid()}.{next(_serial)}"
        self._hash = _Hasher()
        self._small = bytearray()
        self.size = 0
        with write_errors(str(self._target)):
            self._file: IO[bytes] = self._temporary.open("wb", buffering=0)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.size += len(view)
        if len(view) < _SMALL:  # an Arrow batch is hundreds of small pieces
            self._small += view
        else:
            self._flush()
            self._put(view)
        if len(self._small) >= _GATHERED:
            self._flush()
        return len(view)

    def _flush(self) -> None:
        if self._small:
            gathered, self._small = self._small, bytearray()
            self._put(memoryview(gathered))

    def settle(self, size: int) -> None:
        self._hash.settle(size)

    def _put(self, view: memoryview) -> None:
        self._hash.update(view)
        done = 0
        with write_errors(str(self._target)):
            while done < len(view):
                done += self._file.write(view[done:]) or 0

    def commit(self) -> tuple[int, str]:
        self._flush()
        with write_errors(str(self._target)):
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._temporary, self._target)
            handle = os.open(self._target.parent, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        return self.size, self._hash.hexdigest()

    def abort(self) -> None:
        self._hash.close()
        with contextlib.suppress(OSError):
            self._file.close()
        self._temporary.unlink(missing_ok=True)


class _Hasher:
    """sha256 of bytes in order, taken beside the writing in a thread: hashing releases the interpreter."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()
        self._thread = ThreadPoolExecutor(1)
        self._pending: deque[tuple[int, Future[None]]] = deque()  # where the piece starts, and its hashing
        self._size = 0

    def update(self, data: memoryview) -> None:
        if len(self._pending) == _HASH_BACKLOG:
            self._pending.popleft()[1].result()
        self._pending.append((self._size, self._thread.submit(self._sha256.update, data)))
        self._size += len(data)

    def settle(self, size: int) -> None:
        while self._pending and self._pending[0][0] < size:
            self._pending.popleft()[1].result()

    def hexdigest(self) -> str:
        self.settle(self._size + 1)
        self.close()
        return self._sha256.hexdigest()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


class ObjectFolder:
    """A prefix of an object store, through fsspec; one put makes one object, whole or not at all."""

    def __init__(self, path: str) -> None:
        import fsspec

        self.path = path.rstrip("/")
        try:
            self._fs, self._root = fsspec.core.url_to_fs(self.path)
        except (ValueError, ImportError) as error:
            fix = "install the fsspec driver of this scheme"
            raise UsageError("TM901", where=path, what=str(error), fix=fix) from error
        self._fs.use_listings_cache = False

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def make(self) -> None:
        with write_errors(self.path):
            self._fs.makedirs(self._root, exist_ok=True)

    def names(self) -> list[str]:
        with write_errors(self.path):
            self._fs.invalidate_cache()
            if not self._fs.exists(self._root):
                return []
            return sorted(os.path.basename(found.rstrip("/")) for found in self._fs.ls(self._root, detail=False))

    def size(self, name: str) -> int | None:
        try:
            return int(self._fs.size(self._at(name)))
        except FileNotFoundError:
            return None

    def read(self, name: str) -> bytes:
        with write_errors(f"{self.path}/{name}"):
            return self._fs.cat_file(self._at(name))

    def sink(self, name: str) -> Sink:
        return _ObjectSink(self._fs, self._at(name), f"{self.path}/{name}")

    def remove(self, name: str) -> None:
        with write_errors(f"{self.path}/{name}"):
            if self._fs.exists(self._at(name)):
                self._fs.rm_file(self._at(name))

    def local(self, name: str) -> str | None:
        return None

    def sha256(self, name: str) -> str:
        return hashlib.sha256(self.read(name)).hexdigest()


class _ObjectSink:
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

    def commit(self) -> tuple[int, str]:
        data = bytes(self._bytes)
        with write_errors(self._where):
            self._fs.pipe_file(self._path, data)
        return len(data), hashlib.sha256(data).hexdigest()

    def abort(self) -> None:
        self._bytes.clear()
