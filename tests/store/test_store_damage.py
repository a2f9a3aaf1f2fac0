"""A damaged file gives its rows or a coded error: no other exception, and never the end of the process."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from store_rows import dataset, full_row, rows, same

from tracemask.core.errors import StoreError, TracemaskError
from tracemask.store.reader import Dataset, open_dataset
from tracemask.store.schema import TOKEN_COLUMNS
from tracemask.store.stats import stats
from tracemask.store.torch_view import tensors


def read_every_way(path: Path) -> None:
    """All that reads a dataset, row by row and in whole columns."""
    found = open_dataset(path)
    for i in range(len(found)):
        row = found.row(i)
        assert found.kind == "foreign" or {len(values) for values in row.columns.values()} == {len(row)}
        dict(row.scalars)
        tensors(found, i)
    found.scalars()
    stats(found)


def damaged_copies(whole: bytes, *, seed: int, n: int) -> list[bytes]:
    """Copies with a bit or three changed, a run of bytes overwritten, or the end cut off."""
    rng = random.Random(seed)
    copies = []
    for trial in range(n):
        data, at = bytearray(whole), rng.randrange(len(whole))
        if trial % 4 == 0:
            run = rng.choice([1, 4, 8, 64])
            data[at : at + run] = bytes([rng.choice([0, 255])]) * min(run, len(whole) - at)
        elif trial % 16 == 1:
            data = data[:at]
        else:
            for _ in range(rng.choice([1, 3])):
                data[rng.randrange(len(whole))] ^= 1 << rng.randrange(8)
        copies.append(bytes(data))
    return copies


def read_or_coded(path: Path, copies: list[bytes]) -> tuple[int, set[str]]:
    """How many copies were read, and the codes that the others gave."""
    read, codes = 0, set()
    for data in copies:
        path.write_bytes(data)
        try:
            with np.errstate(all="ignore"):
                read_every_way(path)
            read += 1
        except TracemaskError as error:
            if error.where and error.fix:
                codes.add(error.code if error.where and error.fix else f"{error} says too little")
    return read, codes


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of statistics over log-probs that damage made
@pytest.mark.parametrize("together", [6, 1 << 13])
@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_a_damaged_shard_gives_rows_or_a_coded_error(
    tmp_path: Path, profile: str, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tracemask.store.writer.COMPACT_TOKENS", together)
    made = dataset(tmp_path, [*rows(5, length=6, groups=2), full_row()], rows_per_shard=9, profile=profile)
    whole = (tmp_path / made.shards[0].name).read_bytes()
    read, codes = read_or_coded(tmp_path / "alone.arrow", damaged_copies(whole, seed=together, n=400))
    assert read > 20
    assert codes <= {"TM501", "TM508", "TM904"}
    assert "TM508" in codes


def foreign_table() -> pa.Table:
    return pa.table({
        "input_ids": pa.array([[1, 2, 3], [4, 5], [6]] * 4, pa.list_(pa.int32())),
        "mask": pa.array([[0, 1, 1], [0, 1], [1]] * 4, pa.list_(pa.int8())),
        "id": pa.array([f"row {i}" for i in range(12)]),
        "reward": pa.array([0.5] * 12),
    })  # fmt: skip


def write_arrow(path: Path) -> None:
    with pa.ipc.new_file(str(path), foreign_table().schema) as writer:
        writer.write_table(foreign_table(), max_chunksize=5)


def write_parquet(path: Path) -> None:
    pq.write_table(foreign_table(), path, row_group_size=5)


def write_jsonl(path: Path) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in foreign_table().to_pylist()))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("kind", "write"), [("arrow", write_arrow), ("parquet", write_parquet), ("jsonl", write_jsonl)]
)
def test_a_damaged_file_of_another_tool_gives_rows_or_a_coded_error(
    tmp_path: Path, kind: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path / f"whole.{kind}")
    read_every_way(tmp_path / f"whole.{kind}")
    copies = damaged_copies((tmp_path / f"whole.{kind}").read_bytes(), seed=3, n=400)
    (tmp_path / f"whole.{kind}").unlink()
    read, codes = read_or_coded(tmp_path / f"copy.{kind}", copies)
    assert read > 20
    assert codes
    assert "says too little" not in codes


def spoiled(tmp_path: Path, change: Callable[[pa.Table], pa.Table]) -> Path:
    """A shard whose table is changed, and written again with its metadata."""
    made = dataset(tmp_path / "made", [*rows(3), full_row()], rows_per_shard=9)
    table = change(pa.ipc.open_file(f"{tmp_path}/made/{made.shards[0].name}").read_all())
    path = tmp_path / "spoiled.arrow"
    with pa.ipc.new_file(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("name", ["token_ids", "logprob", "sampled", "reward", "drifts"])
def test_a_column_of_another_type_than_is_written_is_refused_at_open(tmp_path: Path, name: str) -> None:
    def change(table: pa.Table) -> pa.Table:
        at = table.schema.get_field_index(name)
        return table.set_column(at, name, pa.array([["x"]] * len(table), pa.large_list(pa.string())))

    with pytest.raises(StoreError, match=f"TM501 (no )?column '{name}'"):
        open_dataset(spoiled(tmp_path, change))


@pytest.mark.parametrize("name", list(TOKEN_COLUMNS))
def test_a_shard_without_a_fixed_column_is_refused_at_open(tmp_path: Path, name: str) -> None:
    with pytest.raises(StoreError, match=f"TM501 no column '{name}'"):
        open_dataset(spoiled(tmp_path, lambda table: table.drop_columns([name])))


def test_a_row_whose_columns_differ_in_length_is_refused(tmp_path: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        column = table["logprob"].to_pylist()
        column[1] = column[1][:-1]
        at = table.schema.get_field_index("logprob")
        return table.set_column(at, table.schema.field(at), pa.chunked_array([column], table.schema.field(at).type))

    found = open_dataset(spoiled(tmp_path, change))
    found.row(0)
    with pytest.raises(StoreError, match=r"TM508 row 1: column 'logprob' has \d+ values for \d+ tokens"):
        found.row(1)


def test_a_text_that_is_no_text_is_said_when_it_is_read(tmp_path: Path) -> None:
    made = dataset(tmp_path, rows(2), rows_per_shard=9)
    path = tmp_path / made.shards[0].name
    path.write_bytes(path.read_bytes().replace(b"t0001/0", b"t\xff001/0"))
    found: Dataset = open_dataset(tmp_path)
    with pytest.raises(StoreError, match="TM508 scalar 'id'"):
        found.row(1).scalars["id"]
    with pytest.raises(StoreError, match="TM508 scalar 'id'"):
        found.scalars(["id"])
    assert found.row(1).scalars["n_tokens"] == len(found.row(1))


def test_a_shard_that_is_compressed_by_another_codec_is_said(tmp_path: Path) -> None:
    made = dataset(tmp_path, rows(2), profile="compact", rows_per_shard=9)
    path = tmp_path / made.shards[0].name
    table = pa.ipc.open_file(str(path)).read_all()
    with pa.ipc.new_file(str(path), table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    with pytest.raises(StoreError, match="TM508 row 0: not compressed by lz4"):
        open_dataset(path).row(0)


def test_columns_are_those_that_arrow_itself_unpacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracemask.store.writer.COMPACT_TOKENS", 100)
    plain = rows(30, length=40)
    made = dataset(
        tmp_path, [*plain[:14], full_row(90), *plain[14:], full_row(200)], rows_per_shard=99, profile="compact"
    )
    table = pa.ipc.open_file(f"{tmp_path}/{made.shards[0].name}").read_all()
    assert table["token_ids"].num_chunks > 10
    for name in made.token_columns:
        if name == "policy_version":
            continue
        for i, expected in enumerate(table[name]):
            found = made.row(i).get(name)
            if expected.values is None:
                assert found is None
            else:
                np.testing.assert_array_equal(found, expected.values.to_numpy(zero_copy_only=False))
    for i, row in enumerate([*plain[:14], full_row(90)]):
        same(made.row(i), row)


def test_rewards_of_another_tool_that_are_not_ours_stay_as_they_are(tmp_path: Path) -> None:
    rewards = [{"name": "tests", "value": 1.0}]
    (tmp_path / "x.jsonl").write_text(json.dumps({"input_ids": [1, 2], "rewards": rewards}) + "\n")
    found = open_dataset(tmp_path / "x.jsonl")
    assert found.row(0).scalars["rewards"] == rewards
    assert found.scalars(["rewards"])["rewards"] == [rewards]
