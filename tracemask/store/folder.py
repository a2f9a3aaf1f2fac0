"""A folder of small named files, local or in a bucket, whose puts are atomic. Knows no shard.

Local: temporary file in the same folder, fsync, `os.replace`, fsync of the folder. Object stores: a put is atomic.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from tracemask.core.errors import UsageError
from tracemask.core.whole import whole_file
from tracemask.store.blob import file_system
from tracemask.store.sink import LocalSink, ObjectSink, Sink, far_errors, write_errors


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
    def modified(self, name: str) -> datetime | None:
        """When the file was last written, by the clock of the place; None where it does not say."""
        ...


def open_folder(path: str | os.PathLike[str]) -> Folder:
    """The folder at `path`: a local path, or any fsspec URL (s3://bucket/key, memory://name)."""
    text = os.fspath(path)
    if not text:
        raise UsageError("TM900", what="a folder without a name", fix="name a folder, or . for this one")
    if "://" not in text:
        return LocalFolder(text)
    if text.startswith("file://"):
        return LocalFolder(text.removeprefix("file://"))
    return ObjectFolder(text)


@contextmanager
def sink_of(folder: Folder, name: str) -> Iterator[Sink]:
    """Where bytes for `name` go; they are there at the end of the context, and not where an error ends it."""
    sink = folder.sink(name)
    try:
        yield sink
        sink.commit()
    except BaseException:
        sink.abort()
        raise


def put(folder: Folder, name: str, data: bytes) -> None:
    """Writes `data` under `name` atomically."""
    with sink_of(folder, name) as sink:
        sink.write(data)


def put_file(path: str, data: bytes) -> None:
    """Writes a file that somebody named, by its path or an fsspec URL, whole or not at all. UsageError TM932."""
    if "://" in path and not path.startswith("file://"):
        folder, _, name = path.rpartition("/")
        put(open_folder(folder), name, data)
        return
    try:
        with whole_file(path.removeprefix("file://")) as file:
            file.write(data)
    except OSError as error:
        fix = "name a file in a folder that exists and may be written, on a disk with room"
        raise UsageError("TM932", where=path, what=error.strerror or str(error), fix=fix) from error


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
        return LocalSink(self._root, name)

    def remove(self, name: str) -> None:
        with write_errors(str(self._root / name)):
            (self._root / name).unlink(missing_ok=True)

    def local(self, name: str) -> str | None:
        return str(self._root / name)

    def sha256(self, name: str) -> str:
        with write_errors(str(self._root / name)), open(self._root / name, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def modified(self, name: str) -> datetime | None:
        with write_errors(str(self._root / name)):
            return datetime.fromtimestamp((self._root / name).stat().st_mtime, UTC)


class ObjectFolder:
    """A prefix of an object store, through fsspec; one put makes one object, whole or not at all."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/")
        self._fs, self._root = file_system(self.path)
        self._fs.use_listings_cache = False

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"

    def make(self) -> None:
        with far_errors(self.path):
            self._fs.makedirs(self._root, exist_ok=True)

    def names(self) -> list[str]:
        with far_errors(self.path):
            self._fs.invalidate_cache()
            if not self._fs.exists(self._root):
                return []
            return sorted(os.path.basename(found.rstrip("/")) for found in self._fs.ls(self._root, detail=False))

    def size(self, name: str) -> int | None:
        with far_errors(f"{self.path}/{name}"):
            try:
                return int(self._fs.size(self._at(name)))
            except FileNotFoundError:
                return None

    def read(self, name: str) -> bytes:
        with far_errors(f"{self.path}/{name}"):
            return self._fs.cat_file(self._at(name))

    def sink(self, name: str) -> Sink:
        return ObjectSink(self._fs, self._at(name), f"{self.path}/{name}")

    def remove(self, name: str) -> None:
        with far_errors(f"{self.path}/{name}"):
            if self._fs.exists(self._at(name)):
                self._fs.rm_file(self._at(name))

    def local(self, name: str) -> str | None:
        return None

    def sha256(self, name: str) -> str:
        return hashlib.sha256(self.read(name)).hexdigest()

    def modified(self, name: str) -> datetime | None:
        try:
            with far_errors(f"{self.path}/{name}"):
                return self._fs.modified(self._at(name))
        except NotImplementedError:
            return None
