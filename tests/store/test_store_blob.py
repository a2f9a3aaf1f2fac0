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
        found = sorted(Tree(root).files(lambda name: True), key=lambda blob: blob.name.split("/"))
        assert [blob.name for blob in found] == ["a/b/x", "a/x", "a-b/x", "a.x", "z"]
        assert [blob.name for blob in Tree(root).files(lambda name: name == "x")] == ["a/x", "a/b/x", "a-b/x"]
        for blob in found:
            assert blob.read() == blob.name.encode()
            assert blob.size() == len(blob.name)
            assert blob.where.endswith(f"/{blob.name}")
            with blob.open() as file:
                assert file.read() == blob.name.encode()


def test_a_url_that_nothing_reads_is_said() -> None:
    with pytest.raises(UsageError, match="TM901"):
        Tree("nothing://x")


@pytest.mark.parametrize("far", [False, True])
def test_a_folder_full_of_other_things_is_left_before_its_end_wherever_it_lies(tmp_path: Path, far: bool) -> None:
    import fsspec

    from tracemask.store.fetch import local_copies
    from tracemask.store.reader import open_dataset

    fs = fsspec.filesystem("memory")
    for k in range(120):
        (tmp_path / f"{k:03}").mkdir()
        for name in range(100):
            fs.pipe_file(f"/blob-huge/{k:03}/{name}.bin", b"") if far else (tmp_path / f"{k:03}/{name}.bin").touch()
    root = "memory://blob-huge" if far else str(tmp_path)
    met = []
    with pytest.raises(UsageError, match=r"TM905 0 of the first 10,1"):
        met.extend(folder for folder, _ in Tree(root).walk(lambda name: False))
    assert len(met) == 101
    with pytest.raises(UsageError, match="TM905"):
        open_dataset(root)
    if far:
        with pytest.raises(UsageError, match="TM905"), local_copies([root]):
            pass


def test_of_a_prefix_only_what_may_be_a_log_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    from tracemask.store.blob import Blob
    from tracemask.store.fetch import local_copies

    fs = fsspec.filesystem("memory")
    for name in ("a.jsonl", "deep/b.json.gz", "model.safetensors", ".hidden/c.jsonl"):
        fs.pipe_file(f"/blob-some/{name}", name.encode())
    fetched: list[str] = []
    fetch = Blob.fetch
    monkeypatch.setattr(Blob, "fetch", lambda blob, target: (fetched.append(blob.name), fetch(blob, target)))
    with local_copies(["memory://blob-some"]) as local:
        assert isinstance(local, list)
        (root,) = map(Path, local)
        found = {str(file.relative_to(root)): file.stat().st_size for file in root.rglob("*") if file.is_file()}
    assert fetched == ["a.jsonl", "deep/b.json.gz"]
    assert found == {"a.jsonl": 7, "deep/b.json.gz": 14, "model.safetensors": 0}


def test_what_a_driver_raises_is_a_coded_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers have classes of their own: no credentials, no such host."""
    import fsspec

    class NoCredentials(Exception):
        pass

    def refuse(*_: object, **__: object) -> None:
        raise NoCredentials("unable to locate credentials")

    from tracemask.store.folder import open_folder, put
    from tracemask.store.reader import open_dataset

    tree, folder = Tree("memory://blob-refused"), open_folder("memory://blob-refused")
    for name in ("isfile", "exists", "walk", "ls", "info", "size", "cat_file", "pipe_file", "makedirs", "open"):
        monkeypatch.setattr(fsspec.filesystem("memory").__class__, name, refuse)
    blob = tree.blob("x")
    calls = [
        *(tree.is_file, tree.exists, lambda: list(tree.files(bool)), blob.size, blob.read, blob.open),
        *(folder.make, folder.names, lambda: folder.size("x"), lambda: folder.read("x")),
        *(lambda: put(folder, "x", b"x"), lambda: open_dataset("memory://blob-refused")),
    ]
    for call in calls:
        with pytest.raises(UsageError, match="TM932 NoCredentials: unable to locate credentials"):
            call()
