"""Columns that are spliced into an Arrow file are the bytes that copied ones would be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from store_rows import full_row, rows, same

from tracemask.store.columns import Columns
from tracemask.store.reader import open_dataset
from tracemask.store.row import Row
from tracemask.store.schema import make_metadata
from tracemask.store.sink import LocalSink
from tracemask.store.splice import Splice
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


def test_a_file_is_the_same_bytes_whether_its_columns_are_copied_or_spliced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spliced: list[int] = []
    real = Splice.stand_in
    monkeypatch.setattr(Splice, "stand_in", lambda *args: (spliced.append(1), real(*args))[1])
    first = written(tmp_path, odd_rows())
    assert len(spliced) >= 5
    spliced.clear()
    monkeypatch.setattr("tracemask.store.columns.GATHERED", 1 << 60)
    assert written(tmp_path, odd_rows()) == first
    assert not spliced


@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_rows_with_odd_memory_come_back(tmp_path: Path, profile: str) -> None:
    made = odd_rows()
    written(tmp_path, made, profile)
    for found, given in zip(open_dataset(tmp_path / "x.arrow"), made, strict=True):
        same(found, given, dtypes=False)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: bytes(data), "copied a column"),
        (lambda data: data.slice(0, data.size - 8), "where Arrow states"),
    ],
)
def test_a_writer_of_arrow_that_no_longer_hands_on_a_column_is_refused(
    tmp_path: Path, spoil: Callable[[pa.Buffer], object], said: str
) -> None:
    """Else memory that was never filled would be in the shard."""
    sink = LocalSink(tmp_path, "x")
    splice = Splice(sink)
    made = rows(20, length=9000)
    schema = pa.schema([pa.field("token_ids", pa.large_list(pa.field("item", pa.int32())))])
    batch = Columns(schema, splice).of(made)
    with pytest.raises(RuntimeError, match=said):
        splice.write(spoil(batch.column(0).values.buffers()[1]))
        splice.check()
    sink.abort()
