"""Logs that lie in a bucket or come through a pipe, copied beside the conversion while it runs. Knows no format."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tracemask.core.errors import UsageError
from tracemask.store.blob import Tree
from tracemask.store.sink import write_errors

Paths = str | os.PathLike[str] | list[str | os.PathLike[str]]


@contextmanager
def local_copies(paths: Paths) -> Iterator[Paths]:
    """`paths` with every fsspec URL (s3://…, memory://…) and every pipe replaced by a local copy; other files stay.

    A URL names an object, or a prefix whose objects keep their place below it. "-" is the standard input. A pipe is
    read once, as JSON lines. UsageError TM901 where there is nothing at a URL, TM905 where it is full of other things.
    """
    given = paths if isinstance(paths, list) else [paths]
    _refuse_again(given)
    if not any(_is_far(os.fspath(path)) for path in given):
        yield paths
        return
    with tempfile.TemporaryDirectory(prefix="tracemask-") as root:
        yield [_copy(os.fspath(path), Path(root) / str(k)) if _is_far(os.fspath(path)) else path
               for k, path in enumerate(given)]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Drained(os.PathLike[str]):
    """What came through a pipe, in a file. shown: the name that the caller gave, in every message and place."""

    path: str
    shown: str

    def __fspath__(self) -> str:
        return self.path

    def __str__(self) -> str:
        return self.shown


@contextmanager
def drained(paths: Sequence[str | os.PathLike[str]]) -> Iterator[list[str | os.PathLike[str]]]:
    """`paths` with every pipe ("-" is the standard input) replaced by a file of what came through it."""
    _refuse_again(paths)
    if not any(is_pipe(os.fspath(path)) for path in paths):
        yield list(paths)
        return
    with tempfile.TemporaryDirectory(prefix="tracemask-") as root:
        yield [Drained(_drain(os.fspath(path), Path(root) / str(k)), os.fspath(path)) if is_pipe(os.fspath(path))
               else path for k, path in enumerate(paths)]  # fmt: skip


def is_pipe(path: str) -> bool:
    """Whether `path` can be read once only: "-", a named pipe, a shell's `<(…)`."""
    if path == "-":
        return True
    try:
        return Path(path).is_fifo()
    except OSError:  # a name that is too long, say: whoever reads it says so
        return False


def _refuse_again(paths: Sequence[str | os.PathLike[str]]) -> None:
    """UsageError TM900 for a pipe that is named twice: the second time nothing is left in it."""
    pipes = [name for path in paths if is_pipe(name := os.fspath(path))]
    again = next((path for k, path in enumerate(pipes) if path in pipes[:k]), None)
    if again is not None:
        raise UsageError("TM900", where=again, what="a pipe is given twice, and can be read once", fix="name it once")


def _is_far(path: str) -> bool:
    return "://" in path or is_pipe(path)


def _drain(path: str, root: Path) -> str:
    """The bytes of a pipe in a file whose name does not depend on the pipe's."""
    target = root / (f"stream-{root.name}.jsonl" if path not in ("-", "/dev/stdin") else "stdin.jsonl")
    root.mkdir()
    with write_errors(path), target.open("wb") as out:
        if path == "-":
            shutil.copyfileobj(sys.stdin.buffer, out)
        else:
            with open(path, "rb") as source:
                shutil.copyfileobj(source, out)
    return str(target)


def _copy(url: str, root: Path) -> str:
    """The logs at a URL in a folder; of files with a name that no log has, the name alone."""
    if "://" not in url:
        return _drain(url, root)
    tree = Tree(url)
    if not url.endswith("/") and tree.is_file():
        blob = tree.blob()
        root.mkdir()
        blob.fetch(root / blob.name)
        return str(root / blob.name)
    found = [(folder, name) for folder, names in tree.walk(_is_log_name) for name in names]
    if not found:
        raise UsageError("TM901", where=url, what="no such object or prefix", fix="check the URL")
    for folder, name in found:
        target = root / folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if not _is_log_name(name):
            target.touch()  # counted as left out, not read
        else:
            tree.blob(f"{folder}/{name}".strip("/")).fetch(target)
    return str(root)


def _is_log_name(name: str) -> bool:
    from tracemask.trace.files import Layout

    return Layout.of(name) is not None
