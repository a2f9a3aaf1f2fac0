"""Packing: everything once, nothing split, the same on every machine; a cut takes every column along."""

from __future__ import annotations

from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from store_rows import full_row, rows, same

from tracemask.core.errors import StoreError
from tracemask.store.pack import Overlong, cu_seqlens, cut, join, pack, positions
from tracemask.store.row import Row

LENGTHS = st.lists(st.integers(0, 60), max_size=60)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(lengths=LENGTHS, policy=st.sampled_from([Overlong.TRUNCATE, Overlong.SKIP]))
def test_every_sample_is_in_exactly_one_pack_or_counted_as_skipped(lengths: list[int], policy: Overlong) -> None:
    found = pack(lengths, 40, overlong=policy)
    assert (
        sorted(i for bin_ in found.bins for i in bin_) + found.skipped
        == sorted(set(range(len(lengths))) - set(found.skipped)) + found.skipped
    )
    for bin_ in found.bins:
        assert 0 <= int(found.lengths[bin_].sum()) <= 40
        assert bin_ == sorted(bin_)
    assert int(found.lengths.sum()) + found.lost_tokens == sum(lengths)
    assert len(found.findings) == sum(length > 40 for length in lengths)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(lengths=st.lists(st.integers(1, 40), max_size=60))
def test_best_fit_needs_no_more_than_twice_the_packs_that_the_tokens_fill(lengths: list[int]) -> None:
    found = pack(lengths, 40)
    assert len(found.bins) <= max(1, 2 * sum(lengths) / 40)
    assert pack(lengths, 40).bins == found.bins


def test_the_packing_is_frozen() -> None:
    """These packs may never change under this packing version: a resumed run depends on them. By hand, longest first:
    8 | 7 | 5 | 4 beside 5 | 4 alone | 3 beside 7 | 2 beside 8 | 1 where least room is left, beside 5 and 4."""
    found = pack([5, 3, 8, 2, 7, 1, 4, 4], 10)
    assert found.bins == [[0, 5, 6], [1, 4], [2, 3], [7]]
    assert found.efficiency == pytest.approx(34 / 40)


def test_positions_start_again_with_each_sample() -> None:
    assert positions([3, 0, 2]).tolist() == [0, 1, 2, 0, 1]
    assert cu_seqlens([3, 0, 2]).tolist() == [0, 3, 3, 5]
    assert positions([]).tolist() == []
    assert cu_seqlens([]).tolist() == [0]


def test_a_pack_holds_its_rows_side_by_side() -> None:
    made = rows(3)
    packed = join(made)
    for k, row in enumerate(made):
        at = slice(packed.cu_seqlens[k], packed.cu_seqlens[k + 1])
        for name, values in packed.columns.items():
            np.testing.assert_array_equal(values[at], row[name])
        assert packed.positions[at].tolist() == list(range(len(row)))
    assert packed.rows == [0, 1, 2]


def test_a_log_prob_that_a_row_lacks_is_nan_in_the_pack_and_an_absent_mask_is_refused() -> None:
    left = Row(0, {"token_ids": np.arange(2), "logprob": np.zeros(2, dtype=np.float32), "mask": np.ones(2)})
    right = Row(1, {"token_ids": np.arange(3)})
    assert np.isnan(join([left, right], ["token_ids", "logprob"]).columns["logprob"][2:]).all()
    left.columns["mask"] = np.ones(2, dtype=bool)
    with pytest.raises(StoreError, match="row 1 has no column 'mask'"):
        join([left, right], ["token_ids", "mask"])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(length=st.integers(5, 20), keep=st.integers(0, 25), side=st.sampled_from(["tail", "head"]))
def test_a_cut_takes_the_same_tokens_of_every_column(length: int, keep: int, side: str) -> None:
    row = full_row(length)
    row.columns["weight.rl"] = np.arange(length, dtype=np.float32)
    found = cut(row, keep, side=side)
    kept = slice(0, min(keep, length)) if side == "tail" else slice(max(0, length - keep), length)
    assert set(found.columns) == set(row.columns)
    for name, values in row.columns.items():
        np.testing.assert_array_equal(found[name], values[kept])
    assert found.scalars["n_tokens"] == len(found) == min(keep, length)
    assert found.scalars["n_sampled"] == int(row["sampled"][kept].sum())


def test_a_cut_tail_marks_the_row_truncated_and_a_cut_head_does_not() -> None:
    row = rows(1, length=12)[0]
    assert cut(row, 3, side="tail").scalars["truncated"] is True
    assert cut(row, 3, side="head").scalars["truncated"] is False
    same(cut(row, len(row)), row)


def test_columns_that_do_not_align_cannot_be_cut() -> None:
    row = Row(4, {"token_ids": np.arange(5), "labels": np.arange(6)})
    with pytest.raises(StoreError, match="row 4: TM101"):
        cut(row, 3)


def test_a_budget_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="TM900"):
        pack([1], 0)


@pytest.mark.parametrize("lengths", [[-1], [3, -2, 1]])
def test_a_negative_length_is_refused(lengths: list[int]) -> None:
    with pytest.raises(StoreError, match="TM900"):
        pack(lengths, 10)
    with pytest.raises(StoreError, match="TM900"):
        cut(rows(1)[0], min(lengths))


def test_empty_samples_are_packed_like_any_other() -> None:
    assert pack([], 5).bins == []
    assert pack([0, 5, 0], 5).bins == [[0, 1, 2]]
    assert pack([0, 0], 5).bins == [[0, 1]]


@pytest.mark.parametrize(
    ("side", "keep", "fork", "tokens"),
    [("tail", 7, 3, [2, 4]), ("tail", 3, 3, [2]), ("tail", 2, 2, []), ("tail", 0, 0, []),
     ("head", 7, 1, [0, 2]), ("head", 5, 0, [0]), ("head", 2, 0, [])],
)  # fmt: skip
def test_what_a_forked_row_says_of_its_tokens_is_cut_with_them(
    side: str, keep: int, fork: int, tokens: list[int]
) -> None:
    row = full_row(9)  # forks at 3, drifts at tokens 4 and 2
    found = cut(row, keep, side=side)
    assert found.scalars["fork_position"] == fork
    assert sorted(one["token"] for one in found.scalars["drifts"]) == tokens
    assert found.scalars["drift"] == len(tokens)
    assert found.scalars["n_turns"] == len(np.unique(found["message"][found["sampled"]]))
    assert row.scalars["fork_position"] == 3
