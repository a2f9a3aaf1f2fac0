"""Shards open in the tools that people already have; docs/howto/shards.md shows these lines."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from store_rows import dataset, full_row, rows

from tracemask.store.reader import Dataset


@pytest.fixture(params=["fast", "compact"])
def found(tmp_path: Path, request: pytest.FixtureRequest) -> Dataset:
    return dataset(tmp_path / "shards", [*rows(6, groups=2), full_row()], rows_per_shard=7, profile=request.param)


def shard(found: Dataset) -> str:
    return f"{found.paths[0]}/{found.shards[0].name}"


def test_hugging_face_datasets_load_a_shard(found: Dataset, tmp_path: Path) -> None:
    import datasets

    datasets.disable_progress_bars()
    loaded = datasets.load_dataset("arrow", data_files=shard(found), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded.num_rows == 7
    for i, row in enumerate(found):
        assert loaded[i]["token_ids"] == row["token_ids"].tolist()
        assert loaded[i]["sampled"] == row["sampled"].tolist()
        assert loaded[i]["reward"] == row.scalars["reward"]
    assert loaded[6]["rewards"][1]["name"] == "style"


def test_polars_reads_a_shard(found: Dataset) -> None:
    import polars as pl

    frame = pl.read_ipc(shard(found))
    assert frame.height == 7
    assert frame["token_ids"][2].to_list() == found.row(2)["token_ids"].tolist()
    assert frame["n_sampled"].to_list() == found.scalars(["n_sampled"])["n_sampled"]
    assert frame["group_id"].to_list() == found.scalars(["group_id"])["group_id"]


def test_duckdb_queries_a_shard(found: Dataset) -> None:
    import duckdb
    import pyarrow as pa

    table = pa.ipc.open_file(shard(found)).read_all()
    connection = duckdb.connect()
    connection.register("shard", table)
    counts = connection.execute(
        "select trace_id, n_tokens, len(token_ids), len(list_filter(sampled, lambda s: s)) from shard order by trace_id"
    ).fetchall()
    expected = [(r.scalars["trace_id"], len(r), len(r), int(r["sampled"].sum())) for r in found]
    assert counts == sorted(expected)


def test_pyarrow_alone_gives_the_same_numbers(found: Dataset) -> None:
    import pyarrow as pa

    table = pa.ipc.open_file(shard(found)).read_all()
    flat = table.column("logprob").combine_chunks().flatten().to_numpy(zero_copy_only=False)
    np.testing.assert_array_equal(flat, np.concatenate([row["logprob"] for row in found]))
