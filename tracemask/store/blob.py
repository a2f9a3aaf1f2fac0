"""Files to read, on a disk or behind an fsspec URL, and what lies below a path. Knows no format."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tracemask.core.errors import UsageError
from tracemask.core.walk import bounded, walk
from tracemask.store.sink import far_errors, write_errors


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
    return real_place(left) == real_place(right)


def real_place(path: str) -> str:
    """The one spelling of a path or URL that all spellings of it share."""
    path = path.removeprefix("file://")
    return path.rstrip("/") if "://" in path else os.path.realpath(path)


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
        with far_errors(self.where):
            return os.path.getsize(self.path) if self.fs is None else int(self.fs.size(self.path))

    def read(self) -> bytes:
        with far_errors(self.where):
            return Path(self.path).read_bytes() if self.fs is None else self.fs.cat_file(self.path)

    def open(self) -> IO[bytes]:
        """For reading at any place; what is behind a URL is fetched as it is asked for."""
        with far_errors(self.where):
            return open(self.path, "rb") if self.fs is None else self.fs.open(self.path, "rb")

    def fetch(self, target: Path) -> None:
        """Copies the bytes into a local file."""
        with far_errors(self.where):
            if self.fs is None:
                shutil.copyfile(self.path, target)
            else:
                self.fs.get_file(self.path, str(target))


class Tree:
    """A path or URL and the files below it."""

    def __init__(self, path: str) -> None:
        self.path = path.removeprefix("file://")
        self._fs: Any | None = None
        self._root = self.path
        if "://" in self.path:
            self._fs, self._root = file_system(self.path)

    def is_file(self) -> bool:
        with far_errors(self.path):
            return os.path.isfile(self._root) if self._fs is None else self._fs.isfile(self._root)

    def exists(self) -> bool:
        with far_errors(self.path):
            return os.path.exists(self._root) if self._fs is None else self._fs.exists(self._root)

    def blob(self, name: str = "") -> Blob:
        """The file `name` below the path; without a name the path itself."""
        if not name:
            return Blob(self.path, PurePosixPath(self._root).name, self._fs, self._root)
        return Blob(f"{self.path.rstrip('/')}/{name}", name, self._fs, f"{self._root.rstrip('/')}/{name}")

    def has(self, name: str) -> bool:
        """Whether there is a file `name` below the path."""
        return Tree(f"{self.path.rstrip('/')}/{name}").is_file()

    def walk(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, list[str]]]:
        """(folder below the path, "" for the path itself; names of the files in it) from the path down, without hidden
        ones. UsageError TM905 where files abound whose names are not `wanted`: a bucket is not listed to its end."""
        if self._fs is None:
            with write_errors(self.path):
                for folder, _, names in walk(self._root, wanted=wanted):
                    inside = folder.relative_to(self._root).as_posix()
                    yield "" if inside == "." else inside, names
            return
        root = self._root.strip("/")
        with far_errors(self.path):
            entries = self._fs.walk(self._root, on_error="raise")
            for here, _, names in bounded(entries, wanted=wanted, where=self.path):
                yield here.strip("/").removeprefix(root).strip("/"), [name for name in names if name]

    def files(self, wanted: Callable[[str], bool]) -> Iterator[Blob]:
        """The files below the path whose names are `wanted`, as they are met; else as `walk`."""
        for folder, names in self.walk(wanted):
            yield from (self.blob(f"{folder}/{name}".strip("/")) for name in names if wanted(name))
