"""New shards from old ones: columns added or rows changed, resumable, never in place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from store_rows import dataset, files, full_row, rows, same

from tracemask.core.errors import TracemaskError
from tracemask.store.derive import add_columns, rewrite
from tracemask.store.manifest import verify
from tracemask.store.reader import open_dataset
from tracemask.store.row import Row


def lengths(row: Row) -> dict[str, np.ndarray]:
    return {"weight.rl": np.full(len(row), 0.5, dtype=np.float32), "denominator.rl": np.full(len(row), 1e300)}


def test_added_columns_stand_beside_everything_that_was_there(tmp_path: Path) -> None:
    source = dataset(tmp_path / "a", [*rows(5), full_row()])
    add_columns(source, str(tmp_path / "b"), lengths, config={"what": "w"}, recipe={"name": "grpo"})
    found = open_dataset(tmp_path / "b")
    assert found.metadata["recipe"] == {"name": "grpo"}
    assert found.metadata["tokenizer_sha256"] == source.metadata["tokenizer_sha256"]
    assert verify(found) == []
    for row, before in zip(found, source, strict=True):
        assert row["weight.rl"].tolist() == [0.5] * len(row)
        assert row["denominator.rl"].tolist() == [1e300] * len(row)
        assert row["denominator.rl"].dtype == np.float64
        del row.columns["weight.rl"], row.columns["denominator.rl"]
        same(row, before)
    assert verify(source) == []


def test_a_column_of_the_wrong_length_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    source = dataset(tmp_path / "a", rows(3))
    with pytest.raises(TracemaskError, match="TM101"):
        add_columns(source, str(tmp_path / "b"), lambda row: {"x": np.zeros(len(row) + 1)}, config={})
    assert list((tmp_path / "b").iterdir()) == []


def test_rows_can_be_changed_or_left_out(tmp_path: Path) -> None:
    source = dataset(tmp_path / "a", rows(6))

    def edit(row: Row) -> Row | None:
        if row.index % 2:
            return None
        return Row(row.index, {**row.columns, "sampled": ~row["sampled"]}, {**row.scalars, "reward": 3.0})

    rewrite(source, str(tmp_path / "b"), edit, config={"edit": 1}, profile="compact")
    found = open_dataset(tmp_path / "b")
    assert found.scalars(["trace_id", "reward"]) == {"trace_id": ["t0000", "t0002", "t0004"], "reward": [3.0] * 3}
    assert found.metadata["profile"] == "compact"
    np.testing.assert_array_equal(found.row(1)["sampled"], ~source.row(2)["sampled"])


def test_an_interrupted_derivation_continues_and_does_not_ask_again(tmp_path: Path) -> None:
    source = dataset(tmp_path / "a", rows(12), rows_per_shard=4)
    asked: list[int] = []

    def failing(row: Row) -> dict[str, np.ndarray]:
        asked.append(row.index)
        if len(asked) == 7:
            raise KeyboardInterrupt
        return lengths(row)

    with pytest.raises(KeyboardInterrupt):
        add_columns(source, str(tmp_path / "b"), failing, config={})
    add_columns(source, str(tmp_path / "b"), failing, config={})
    assert asked == [*range(7), *range(4, 12)]
    add_columns(source, str(tmp_path / "c"), lengths, config={})
    assert files(tmp_path / "b") == files(tmp_path / "c")


def test_deriving_in_place_over_something_else_or_from_foreign_data_is_refused(tmp_path: Path) -> None:
    source = dataset(tmp_path / "a", rows(3))
    with pytest.raises(TracemaskError, match="TM900"):
        add_columns(source, str(tmp_path / "a"), lengths, config={})
    add_columns(source, str(tmp_path / "b"), lengths, config={"version": 1})
    with pytest.raises(TracemaskError, match="TM933"):
        add_columns(source, str(tmp_path / "b"), lengths, config={"version": 2})
    add_columns(source, str(tmp_path / "b"), lengths, config={"version": 2}, force=True)
    (tmp_path / "f.jsonl").write_text('{"input_ids": [1]}\n')
    with pytest.raises(TracemaskError, match="TM501"):
        add_columns(open_dataset(tmp_path / "f.jsonl"), str(tmp_path / "d"), lengths, config={})


@pytest.mark.parametrize("spelling", ["{0}", "{0}/", "{0}/../a", "link"])
def test_a_dataset_is_never_derived_onto_itself_however_its_folder_is_spelled(tmp_path: Path, spelling: str) -> None:
    """With force the old shards would be removed before they were read."""
    source = dataset(tmp_path / "a", rows(3))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    before = files(tmp_path / "a")
    out = str(tmp_path / "link") if spelling == "link" else spelling.format(tmp_path / "a")
    with pytest.raises(TracemaskError, match="TM900 reading and writing the same folder"):
        add_columns(source, out, lengths, config={}, force=True)
    assert files(tmp_path / "a") == before
