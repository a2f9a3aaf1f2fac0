"""Statistics count what is there and say nothing about what is not."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from store_rows import dataset, full_row, rows

from tracemask.core.vocab import Author, Part, Role
from tracemask.store.reader import open_dataset
from tracemask.store.stats import stats


@pytest.mark.parametrize("profile", ["fast", "compact"])
def test_counts_are_those_of_the_rows(tmp_path: Path, profile: str) -> None:
    found = dataset(tmp_path, [*rows(11, groups=3), full_row()], profile=profile)
    got = stats(found)
    whole = {name: np.concatenate([row[name] for row in found]) for name in ("author", "role", "part", "sampled")}
    for name, code in (("author", Author), ("role", Role), ("part", Part)):
        assert got.by[name] == dict(Counter(code(value).label for value in whole[name].tolist()))
    assert got.tokens == len(whole["author"])
    assert (got.trained, got.trained_by) == (int(whole["sampled"].sum()), "sampled")
    assert got.lengths.max == max(len(row) for row in found)
    assert sum(n for _, _, n in got.histogram) == got.rows == 12
    assert got.traces == 12
    assert got.drift == {"nfc": 1, "bpe_split": 1}
    assert got.fidelity == {"exact": 12}
    assert (got.truncated, got.approximate, got.forked) == (1, 1, 1)
    json.dumps(got.to_json(), allow_nan=False)


def test_every_length_falls_into_its_bin(tmp_path: Path) -> None:
    found = dataset(tmp_path, [full_row(n) for n in (5, 8, 15, 16, 33)])
    for start, end, n in stats(found).histogram:
        assert n == sum(start <= len(row) < end for row in found)


def test_groups_rewards_and_splits_are_counted_by_rollout(tmp_path: Path) -> None:
    """12 rows in 3 groups of 4; row i has reward i mod 3 and group i mod 3, so each group's rewards are equal."""
    got = stats(dataset(tmp_path, rows(12, groups=3), rows_per_shard=6))
    assert got.groups is not None
    assert (got.groups.groups, got.groups.sizes.min, got.groups.sizes.max) == (3, 4, 4)
    assert (got.groups.zero_spread, got.groups.singletons, got.groups.split_over_shards) == (3, 0, 3)
    assert got.reward is not None
    assert (got.reward.mean, got.reward_missing) == (1.0, 0)
    lone = stats(dataset(tmp_path / "lone", rows(3)))
    assert lone.reward is not None
    assert (lone.reward.n, lone.reward_missing) == (0, 3)


def test_what_a_foreign_dataset_lacks_is_none(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}\n{"input_ids": [4], "labels": [-100]}\n')
    got = stats(open_dataset(path))
    assert (got.rows, got.tokens, got.trained, got.trained_by) == (2, 4, 2, "labels")
    assert (got.traces, got.reward, got.groups, got.truncated) == (None, None, None, None)
    assert (got.by, got.fidelity, got.drift) == ({}, {}, {})
