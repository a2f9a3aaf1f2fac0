"""Files to read, on a disk or behind an fsspec URL, and what lies below a path. Knows no format."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tracemask.core.errors import UsageError
from tracemask.store.sink import write_errors


def file_system(url: str) -> tuple[Any, str]:
    """The fsspec file system of `url` and the path in it. UsageError TM901 where no driver reads such a URL."""
    import fsspec

    try:
        return fsspec.core.url_to_fs(url)
    except (ValueError, ImportError) as error:
        fix = "install the fsspec driver of this scheme"
        raise UsageError("TM901", where=url, what=str(error), fix=fix) from error


def same_place(left: str, right: str) -> bool:
    """Whether two paths or URLs, however spelled, name one folder or file."""
    if "://" in left or "://" in right:
        return left.rstrip("/") == right.rstrip("/")
    return os.path.realpath(left) == os.path.realpath(right)


@dataclass(frozen=True, slots=True)
class Blob:
    """One file. where: as its reader knows it. name: its path below the tree it was found in."""

    where: str
    name: str
    fs: Any | None = None  # an fsspec file system; None: a local path
    path: str = ""

    @property
    def suffix(self) -> str:
        """The kind that the name claims, without a dot."""
        return PurePosixPath(self.name).suffix.removeprefix(".").lower()

    def size(self) -> int:
        with write_errors(self.where):
            return os.path.getsize(self.path) if self.fs is None else int(self.fs.size(self.path))

    def read(self) -> bytes:
        with write_errors(self.where):
            return Path(self.path).read_bytes() if self.fs is None else self.fs.cat_file(self.path)

    def open(self) -> IO[bytes]:
        """For reading at any place; what is behind a URL is fetched as it is asked for."""
        with write_errors(self.where):
            return open(self.path, "rb") if self.fs is None else self.fs.open(self.path, "rb")


class Tree:
    """A path or URL and the files below it."""

    def __init__(self, path: str) -> None:
        self.path = path.removeprefix("file://")
        self._fs: Any | None = None
        self._root = self.path
        if "://" in self.path:
            self._fs, self._root = file_system(self.path)

    def is_file(self) -> bool:
        with write_errors(self.path):
            return os.path.isfile(self._root) if self._fs is None else self._fs.isfile(self._root)

    def exists(self) -> bool:
        with write_errors(self.path):
            return os.path.exists(self._root) if self._fs is None else self._fs.exists(self._root)

    def blob(self, name: str = "") -> Blob:
        """The file `name` below the path; without a name the path itself."""
        if not name:
            return Blob(self.path, PurePosixPath(self._root).name, self._fs, self._root)
        return Blob(f"{self.path.rstrip('/')}/{name}", name, self._fs, f"{self._root.rstrip('/')}/{name}")

    def has(self, name: str) -> bool:
        """Whether there is a file `name` below the path."""
        return Tree(f"{self.path.rstrip('/')}/{name}").is_file()

    def files(self) -> Iterator[Blob]:
        """Every file below the path, folder by folder in order."""
        with write_errors(self.path):
            if self._fs is None:
                files = [file for file in Path(self._root).rglob("*") if file.is_file()]
                names = [file.relative_to(self._root).as_posix() for file in files]
            else:
                root = self._root.strip("/")
                names = [found.strip("/").removeprefix(root).strip("/") for found in self._fs.find(self._root)]
        for name in sorted(names, key=lambda name: name.split("/")):
            yield self.blob(name)
