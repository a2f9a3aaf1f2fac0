"""Rows are stored whatever their arrays look like in memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from store_rows import full_row, rows, same

from tracemask.store.reader import open_dataset
from tracemask.store.row import Row
from tracemask.store.schema import make_metadata
from tracemask.store.writer import ShardWriter


def odd_rows() -> list[Row]:
    """Long rows whose columns are views with gaps, of other types or byte order, and here and there missing."""
    made = [*rows(12, length=9000), full_row(20_000), *rows(3, length=2)]
    for i, row in enumerate(made):
        if i % 3 == 0:
            row.columns["token_ids"] = np.repeat(row["token_ids"], 2)[::2]
        if i % 3 == 1:
            row.columns["logprob"] = row["logprob"].astype(">f4")
        if i % 2:
            row.columns["extra"] = row["message"].astype(np.int64 if i % 4 == 1 else np.int16)
    return made


def written(folder: Path, made: list[Row], profile: str = "fast") -> bytes:
    with ShardWriter(str(folder), "x.arrow", metadata=make_metadata(profile=profile)) as writer:
        for row in made:
            writer.add(row)
        writer.commit()
    return (folder / "x.arrow").read_bytes()


@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_rows_with_odd_memory_come_back(tmp_path: Path, profile: str) -> None:
    made = odd_rows()
    written(tmp_path, made, profile)
    for found, given in zip(open_dataset(tmp_path / "x.arrow"), made, strict=True):
        same(found, given, dtypes=False)
