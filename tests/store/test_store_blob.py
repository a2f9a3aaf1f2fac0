"""What lies below a path is the same list on a disk and in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracemask.core.errors import UsageError
from tracemask.store.blob import Tree


def test_files_are_listed_folder_by_folder_whatever_holds_them(tmp_path: Path) -> None:
    import fsspec

    fs = fsspec.filesystem("memory")
    for name in ("a-b/x", "a/x", "a/b/x", "a.x", "z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
        fs.pipe_file(f"/blob-tree/{name}", name.encode())
    for root in (str(tmp_path), f"{tmp_path}/", f"file://{tmp_path}", "memory://blob-tree", "memory://blob-tree/"):
        found = list(Tree(root).files())
        assert [blob.name for blob in found] == ["a/b/x", "a/x", "a-b/x", "a.x", "z"]
        for blob in found:
            assert blob.read() == blob.name.encode()
            assert blob.size() == len(blob.name)
            assert blob.where.endswith(f"/{blob.name}")
            with blob.open() as file:
                assert file.read() == blob.name.encode()


def test_a_url_that_nothing_reads_is_said() -> None:
    with pytest.raises(UsageError, match="TM901"):
        Tree("nothing://x")
