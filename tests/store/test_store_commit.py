"""The commit protocol: nothing half-written is ever taken for whole, and every changed byte is found."""

from __future__ import annotations

import errno
import io
import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pytest
from store_rows import dataset, files, rows

from tracemask.core.errors import StoreError, TracemaskError
from tracemask.store import lock as locks
from tracemask.store import sink as sinks
from tracemask.store.commit import prepare, valid_receipt, write_dataset
from tracemask.store.folder import open_folder, put
from tracemask.store.lock import LOCK, locked
from tracemask.store.manifest import MANIFEST, Receipt, read_receipt, receipt_name, schema, seal, unseal, verify
from tracemask.store.reader import open_dataset
from tracemask.store.schema import make_metadata
from tracemask.store.writer import ShardWriter


def broken(folder: Path) -> bool:
    """Whether check's verification finds a fault."""
    findings = verify(str(folder))
    assert all(finding.code == "TM508" for finding in findings)
    return bool(findings)


def test_an_untouched_dataset_has_no_finding(tmp_path: Path) -> None:
    assert verify(dataset(tmp_path, rows(6))) == []


@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_every_flipped_byte_and_every_truncation_is_found(tmp_path: Path, profile: str) -> None:
    dataset(tmp_path, rows(5, length=6), rows_per_shard=3, profile=profile)
    names = sorted(path.name for path in tmp_path.iterdir())
    rng = random.Random(7)
    for trial in range(500):
        path = tmp_path / rng.choice(names)
        whole = path.read_bytes()
        at = rng.randrange(len(whole))
        if trial % 2:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :])
        else:
            path.write_bytes(whole[:at])
        assert broken(tmp_path), (path.name, at, trial)
        if not trial % 2 and path.suffix == ".arrow":
            with pytest.raises(StoreError) as error:
                open_dataset(tmp_path)
            assert error.value.code == "TM508"
            assert path.name in error.value.where
        path.write_bytes(whole)
    assert not broken(tmp_path)


@pytest.mark.parametrize("kind", [".arrow", ".receipt.json", MANIFEST])
def test_a_missing_file_is_found(tmp_path: Path, kind: str) -> None:
    dataset(tmp_path, rows(6))
    next(path for path in sorted(tmp_path.iterdir()) if path.name.endswith(kind)).unlink()
    assert broken(tmp_path)


def test_a_shard_that_the_manifest_does_not_list_is_found(tmp_path: Path) -> None:
    dataset(tmp_path, rows(6))
    (tmp_path / "shard-99999-abc.arrow").write_bytes(next(tmp_path.glob("*.arrow")).read_bytes())
    assert broken(tmp_path)


def test_a_shard_cut_at_a_record_batch_is_refused_alone_too(tmp_path: Path) -> None:
    found = dataset(tmp_path, rows(6), rows_per_shard=6, profile="compact")
    path = tmp_path / found.shards[0].name
    whole = path.read_bytes()
    for at in range(len(whole) - 1, 0, -37):
        path.write_bytes(whole[:at])
        with pytest.raises(TracemaskError) as error:
            open_dataset(path)
        assert error.value.code in ("TM508", "TM931"), at


def test_a_folder_without_manifest_is_an_unfinished_conversion(tmp_path: Path) -> None:
    dataset(tmp_path, rows(3))
    (tmp_path / MANIFEST).unlink()
    with pytest.raises(StoreError, match="TM508 .*did not finish"):
        open_dataset(tmp_path)


def test_a_sealed_document_is_its_own_only_spelling() -> None:
    receipt = Receipt(name="a.arrow", bytes=1, sha256="0", plan="p", range=(0, 1), counts={})  # type: ignore[arg-type]
    data = seal(receipt)
    assert unseal(Receipt, data, where="x") == receipt
    for spoiled in (
        data.replace(b"\n", b" \n", 1),
        data[:-1],
        data + b"\n",
        data.replace(b"a.arrow", b"b.arrow"),
        b"[]",
    ):
        with pytest.raises(StoreError, match="TM508"):
            unseal(Receipt, spoiled, where="x")


def test_manifest_and_receipts_agree_with_the_published_schema(tmp_path: Path) -> None:
    dataset(tmp_path, rows(6))
    published = schema()
    jsonschema.Draft202012Validator.check_schema(published)
    jsonschema.validate(json.loads((tmp_path / MANIFEST).read_bytes()), published)
    receipts = {"$ref": "#/$defs/Receipt", "$defs": published["$defs"]}
    for path in tmp_path.glob("*.receipt.json"):
        jsonschema.validate(json.loads(path.read_bytes()), receipts)


def test_the_schema_file_is_that_of_the_models() -> None:
    path = Path(__file__).resolve().parents[2] / "schemas" / "manifest.v1.schema.json"
    assert json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(schema()))


def test_nothing_in_a_dataset_depends_on_its_place_or_time(tmp_path: Path) -> None:
    dataset(tmp_path / "a", rows(7))
    dataset(tmp_path / "b" / "c", rows(7))
    assert files(tmp_path / "a") == files(tmp_path / "b" / "c")
    assert str(tmp_path).encode() not in b"".join(files(tmp_path / "a").values())


def test_an_aborted_shard_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), ShardWriter(str(tmp_path), "s.arrow", metadata=make_metadata()) as writer:
        writer.add(rows(1)[0])
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_receipt_is_valid_only_for_its_plan_range_and_bytes(tmp_path: Path) -> None:
    folder = open_folder(tmp_path)
    with ShardWriter(folder, "s.arrow", metadata=make_metadata(), plan="p", span=(0, 2)) as writer:
        for row in rows(2):
            writer.add(row)
        receipt = writer.commit()
    assert read_receipt(folder, "s.arrow") == receipt
    assert valid_receipt(folder, "s.arrow", plan="p", span=(0, 2)) == receipt
    assert valid_receipt(folder, "s.arrow", plan="q", span=(0, 2)) is None
    assert valid_receipt(folder, "s.arrow", plan="p", span=(0, 3)) is None
    whole = (tmp_path / "s.arrow").read_bytes()
    (tmp_path / "s.arrow").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert valid_receipt(folder, "s.arrow", plan="p", span=(0, 2)) is None
    (tmp_path / "s.arrow").unlink()
    assert valid_receipt(folder, "s.arrow", plan="p", span=(0, 2)) is None


def test_a_folder_with_another_dataset_is_refused_unless_forced(tmp_path: Path) -> None:
    dataset(tmp_path, rows(3))
    (tmp_path / "notes.txt").write_text("mine")
    left_over = tmp_path / ".tmp-shard-00000-0123456789ab.arrow.12.0"
    left_over.write_text("x")
    (tmp_path / ".tmp-mine").write_text("x")
    with pytest.raises(StoreError, match="TM933"):
        prepare(open_folder(tmp_path), plan="other")
    assert left_over.exists()
    prepare(open_folder(tmp_path), plan="other", force=True)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", ".tmp-mine"}


def test_a_folder_of_other_files_is_refused_and_forcing_touches_none_of_them(tmp_path: Path) -> None:
    strangers = {"data-00000-of-00001.arrow": b"a", "x.receipt.json": b"b", ".tmp-x": b"c"}
    for name, data in strangers.items():
        (tmp_path / name).write_bytes(data)
    with pytest.raises(StoreError, match="TM933 the folder is not empty and holds no dataset: .tmp-x, data-00000"):
        write_dataset(str(tmp_path), rows(3), metadata=make_metadata())
    assert files(tmp_path) == strangers
    write_dataset(str(tmp_path), rows(3), metadata=make_metadata(), force=True)
    found = files(tmp_path)
    assert {name: found[name] for name in strangers} == strangers
    write_dataset(str(tmp_path), rows(3), metadata=make_metadata())  # our dataset, and files beside it


@pytest.mark.parametrize("force", [False, True])
def test_a_manifest_of_another_tool_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / MANIFEST).write_text('{"name": "an app"}')
    with pytest.raises(StoreError, match="TM933 manifest.json here is of another tool"):
        write_dataset(str(tmp_path), rows(3), metadata=make_metadata(), force=force)
    assert files(tmp_path) == {MANIFEST: b'{"name": "an app"}'}


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TracemaskError, match=r"TM932 (File exists|Not a directory)") as error:
        write_dataset(str(tmp_path / path), rows(3), metadata=make_metadata())
    assert "give a folder" in error.value.fix


def test_a_shard_opened_by_its_path_is_compared_with_its_receipt(tmp_path: Path) -> None:
    found = dataset(tmp_path, rows(6))
    path = tmp_path / found.shards[0].name
    assert verify(open_dataset(path)) == []
    whole = path.read_bytes()
    at = whole.index(found.row(2)["token_ids"].tobytes())
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    (finding,) = verify(open_dataset(path))
    assert (finding.code, finding.place.path) == ("TM508", str(path))
    path.write_bytes(whole)
    receipt = tmp_path / receipt_name(path.name)
    receipt.write_bytes(receipt.read_bytes()[:-2])
    assert [finding.code for finding in verify(open_dataset(path))] == ["TM508"]
    receipt.unlink()
    assert verify(open_dataset(path)) == []


def _hold(path: str, ready: Any, done: Any) -> None:
    with locked(open_folder(path)):
        ready.set()
        done.wait(30)


def test_two_writers_in_one_folder_are_refused_and_the_owner_is_named(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(str(tmp_path), ready, done))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(StoreError) as error, locked(open_folder(tmp_path)):
        pass
    assert error.value.code == "TM930"
    assert f"process {holder.pid}" in error.value.what
    done.set()
    holder.join(30)
    with locked(open_folder(tmp_path)):
        assert (tmp_path / LOCK).exists()
    assert not (tmp_path / LOCK).exists()


def test_the_lock_of_a_killed_writer_is_free_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(str(tmp_path), ready, done))
    holder.start()
    assert ready.wait(30)
    holder.kill()
    holder.join(30)
    assert (tmp_path / LOCK).exists()
    with locked(open_folder(tmp_path)):
        pass


@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_lock_that_a_full_disk_does_not_take_is_said_and_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(StoreError, match="TM932 No space left.*free some space"), locked(open_folder(tmp_path)):
            pass
    assert list(tmp_path.iterdir()) == []
    with locked(open_folder(tmp_path)):
        pass


def test_a_lock_left_in_an_object_store_is_taken_once_it_lapsed_or_by_force(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder("memory://store-lock")
    put(folder, LOCK, b'{"host": "elsewhere", "pid": 1}')
    with pytest.raises(StoreError, match="process 1 on elsewhere") as error, locked(folder):
        pass
    assert "if it was killed, run again in 60 s" in error.value.fix
    with locked(folder, force=True):
        pass
    assert folder.names() == []
    put(folder, LOCK, b'{"host": "elsewhere", "pid": 1}')
    monkeypatch.setattr(locks, "LAPSE", 0.2)
    time.sleep(0.25)
    with locked(folder):
        pass
    assert folder.names() == []


def test_a_lock_in_an_object_store_is_kept_alive_by_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "BEAT", 0.02)
    monkeypatch.setattr(locks, "LAPSE", 2.0)
    folder = open_folder("memory://store-beat")
    with locked(folder):
        first = folder.modified(LOCK)
        deadline = time.monotonic() + 20
        while folder.modified(LOCK) == first and time.monotonic() < deadline:
            time.sleep(0.01)
        assert folder.modified(LOCK) != first
        with pytest.raises(StoreError, match="TM930"), locked(folder):
            pass
    assert folder.names() == []


def test_a_lock_of_unknown_age_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder("memory://store-ageless")
    monkeypatch.setattr(type(folder), "modified", lambda *_: None)
    put(folder, LOCK, b"")
    with pytest.raises(StoreError, match="TM930") as error, locked(folder):
        pass
    assert "remove the lock object" in error.value.fix
    assert folder.names() == [LOCK]
    folder.remove(LOCK)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """A local disk that takes `room` more bytes and then says it is full."""
    left = {"room": 0}
    write = os.write

    def take(handle: int, data: memoryview) -> int:
        size = min(len(data), left["room"])
        if size == 0 and len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left["room"] -= size
        return write(handle, data[:size])

    class Full(io.RawIOBase):
        def __init__(self, path: str) -> None:
            self._handle = os.open(path, os.O_WRONLY)

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            view = memoryview(data)
            while view:
                view = view[take(self._handle, view) :]
            return len(data)

        def close(self) -> None:
            if not self.closed:
                os.close(self._handle)
            super().close()

    monkeypatch.setattr(os, "write", take)
    monkeypatch.setattr(pa, "OSFile", lambda path, mode: pa.PythonFile(Full(path), "w"))
    return left


@pytest.mark.parametrize("room", [0, 100, 5_000, 20_000])
def test_a_full_disk_is_said_and_leaves_nothing_half_committed(
    tmp_path: Path, full_disk: dict[str, int], room: int
) -> None:
    full_disk["room"] = room
    with pytest.raises(StoreError) as error:
        write_dataset(str(tmp_path), rows(30, length=50), metadata=make_metadata(), rows_per_shard=3)
    assert error.value.code == "TM932"
    assert "No space left" in error.value.what
    assert "free some space" in error.value.fix
    left = {path.name for path in tmp_path.iterdir()}
    assert not any(name.startswith(sinks.TEMPORARY) for name in left)
    assert MANIFEST not in left
    for name in (name for name in left if name.endswith(".receipt.json")):
        assert name.replace(".receipt.json", ".arrow") in left
    full_disk["room"] = 1 << 40
    write_dataset(str(tmp_path), rows(30, length=50), metadata=make_metadata(), rows_per_shard=3)
    dataset(tmp_path.parent / "undisturbed", rows(30, length=50), rows_per_shard=3, tokenizer_sha256="", vocab_size=0)
    assert files(tmp_path) == files(tmp_path.parent / "undisturbed")


def test_a_folder_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    locked_folder = tmp_path / "no"
    locked_folder.mkdir()
    script = (
        "import os, sys\n"
        "from tracemask.core.errors import TracemaskError\n"
        "from tracemask.store.folder import open_folder, put\n"
        "os.getuid() or os.setuid(65534)\n"
        "try:\n"
        "    put(open_folder(sys.argv[1]), 'a', b'x')\n"
        "except TracemaskError as error:\n"
        "    print(error.code, error.what)\n"
    )
    locked_folder.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", script, str(locked_folder)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("TM932 Permission denied"), done.stderr


def test_a_dataset_in_an_object_store_is_that_of_a_local_folder(tmp_path: Path) -> None:
    made = rows(6)
    facts = make_metadata(tokenizer_sha256="a" * 64, vocab_size=151_669)
    write_dataset("memory://store-same", made, metadata=facts, rows_per_shard=4)
    dataset(tmp_path, made)
    folder = open_folder("memory://store-same")
    assert {name: folder.read(name) for name in folder.names()} == files(tmp_path)
    found = open_dataset("memory://store-same")
    assert len(found) == 6
    assert verify(found) == []
    assert found.row(5)["token_ids"].tolist() == made[5]["token_ids"].tolist()


def test_receipt_names_stand_beside_their_shard() -> None:
    assert receipt_name("shard-1.arrow") == "shard-1.receipt.json"
