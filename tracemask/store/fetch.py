"""Logs that lie in a bucket, copied beside the conversion while it runs. Knows no format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tracemask.core.errors import UsageError
from tracemask.store.blob import file_system
from tracemask.store.sink import write_errors

Paths = str | os.PathLike[str] | list[str | os.PathLike[str]]


@contextmanager
def local_copies(paths: Paths) -> Iterator[Paths]:
    """`paths` with every fsspec URL (s3://…, memory://…) replaced by a local copy; what is local stays.

    A URL names an object, or a prefix whose objects keep their place below it. UsageError TM901 where there is none.
    """
    given = paths if isinstance(paths, list) else [paths]
    if not any("://" in os.fspath(path) for path in given):
        yield paths
        return
    with tempfile.TemporaryDirectory(prefix="tracemask-") as root:
        yield [_copy(os.fspath(path), Path(root) / str(k)) if "://" in os.fspath(path) else path
               for k, path in enumerate(given)]  # fmt: skip


def _copy(url: str, root: Path) -> str:
    fs, path = file_system(url)
    with write_errors(url):
        found = fs.find(path)
        if not found:
            raise UsageError("TM901", where=url, what="no such object or prefix", fix="check the URL")
        single = found == [path] or (len(found) == 1 and found[0].strip("/") == path.strip("/"))
        base = os.path.dirname(path.rstrip("/")) if single else path.rstrip("/")
        for name in found:
            target = root / os.path.relpath(name, base)
            target.parent.mkdir(parents=True, exist_ok=True)
            fs.get_file(name, str(target))
    return str(root / os.path.basename(path)) if single else str(root)
