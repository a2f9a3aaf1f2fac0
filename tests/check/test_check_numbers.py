"""Denominators and advantages of other tools: what they follow, and what they must not."""

from __future__ import annotations

import numpy as np
import pytest
from check_make import SMALL, TALK, Foreign, Rows, changed, chat, foreign, ours

from tracemask.check.config import Settings
from tracemask.check.runner import check_dataset
from tracemask.render.tokenizer import Tokenizer
from tracemask.store.row import Row


@pytest.fixture(scope="module")
def rows():
    """Twelve rows of several lengths, in groups of three, with weights."""
    tokenizer = Tokenizer.load(SMALL)
    out = []
    for i in range(12):
        words = " and so on" * (1 + 5 * i % 7)
        talk = [TALK[0], ("user", f"Pier {i // 3}?"), ("assistant", f"At {i} o'clock{words}.")]
        row = foreign(ours(tokenizer, chat(talk), index=i), group_id=f"g{i // 3}", reward=float(i % 3 == i // 3 % 3))
        out.append(changed(row, **{"weight.rl": row["mask"].astype(np.float32)}))
    return out


def divided(rows, by):
    """TM606 of rows with denominator by(row number)."""
    made = []
    for i, row in enumerate(rows):
        on = np.where(row["mask"] > 0, float(by(i)), np.nan).astype(np.float64)
        made.append(changed(row, **{"denominator.rl": on}))
    return [f.message for f in check_dataset(Foreign(made), settings=Settings(select=("TM606",))).findings]


def counted(rows, chosen):
    return sum(int(rows[i]["mask"].sum()) for i in chosen)


def around(i, n):
    return range(i - i % n, i - i % n + n)


@pytest.mark.parametrize(
    ("by", "told"),
    [
        (lambda rows, i: len(rows[i]), "the whole length of the row"),
        (lambda rows, i: counted(rows, around(i, 2)), "the tokens of a part"),
        (lambda rows, i: counted(rows, around(i, 4)), "the tokens of a part"),
        (lambda rows, i: counted(rows, range(i % 2, 12, 2)), "the tokens of a part"),
        (lambda rows, i: counted(rows, range(i % 4, 12, 4)), "the tokens of a part"),
        (lambda rows, i: sum(len(rows[k]) for k in around(i, 4)), "all tokens, context included"),
        (lambda rows, i: 4 * max(len(rows[k]) for k in around(i, 4)), "the padded size"),
        (lambda rows, i: counted(rows, [i]) * (8 if i < 8 else 4), "the number of a part"),
    ],
    ids=["length", "micro 2", "micro 4", "rank of 2", "rank of 4", "all of micro", "padded micro", "rows of micro"],
)
def test_a_denominator_that_depends_on_batching_is_told_by_what_it_follows(rows, by, told):
    (message,) = divided(rows, lambda i: by(rows, i))
    assert told in message


@pytest.mark.parametrize("of", [lambda row: int(row["mask"].sum()), len], ids=["tokens", "all tokens"])
def test_micro_batches_of_one_sum_in_a_row_do_not_hide_the_others(rows, of):
    made = [changed(rows[i]) for i in (0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7)]
    for index, row in enumerate(made):
        row.index, row.scalars = index, {**row.scalars, "group_id": None}
    (message,) = divided(made, lambda i: sum(of(made[k]) for k in around(i, 4)))
    assert "of a part of the rows" in message


@pytest.mark.parametrize(
    "by",
    [
        lambda rows, i: 640.0,
        lambda rows, i: counted(rows, range(12)),
        lambda rows, i: counted(rows, [i]),
        lambda rows, i: counted(rows, [i]) * 12,
        lambda rows, i: counted(rows, around(i, 3)) * 4,
    ],
    ids=["constant", "token mean", "row", "sequence mean", "group mean"],
)
def test_the_usual_normalizers_pass(rows, by):
    assert divided(rows, lambda i: by(rows, i)) == []


def with_advantages(rows, change):
    """TM408 of rows with r − mean(group) on every trained token, changed by change(row number, column, places)."""
    means = {
        g: np.mean([r.scalars["reward"] for r in rows if r.scalars["group_id"] == g]) for g in ("g0", "g1", "g2", "g3")
    }
    made = []
    for i, row in enumerate(rows):
        column = np.where(row["mask"] > 0, row.scalars["reward"] - means[row.scalars["group_id"]], 0.0)
        change(i, column, np.flatnonzero(row["mask"]))
        made.append(changed(row, advantage=column))
    found = check_dataset(Foreign(made), settings=Settings(select=("TM408",)))
    assert "TM408" in found.ran
    return [(f.place.row, f.cause) for f in found.findings]


def test_advantages_of_a_column_are_recomputed_like_those_of_a_scalar(rows):
    def flip(i, column, places):
        column[places] *= -1 if i == 4 else 1

    assert with_advantages(rows, lambda *_: None) == []
    assert with_advantages(rows, flip) == [(4, None)]


def test_an_advantage_that_changes_inside_a_call_is_found_and_one_per_token_is_not(rows):
    def cut(i, column, places):
        column[places[3:]] *= 2 if i == 7 else 1

    def smooth(i, column, places):
        column[places] += np.arange(len(places)) / 10

    assert (7, "inside a call") in with_advantages(rows, cut)
    assert with_advantages(rows, smooth) == []


@pytest.mark.parametrize(
    ("estimator", "told"),
    [
        (lambda r, i: (r - 0.4) / 0.31, []),
        (lambda r, i: max(r - 0.7, -0.2), []),
        (lambda r, i: r**2 - 3, []),
        (lambda r, i: r - 0.01 * i, ["unknown estimator"]),
        (lambda r, i: -r, ["unknown estimator"]),
    ],
    ids=["of a batch", "clipped", "of other rewards", "with a penalty", "turned round"],
)
def test_an_unknown_estimator_is_told_where_advantages_do_not_rise_with_rewards(rows, estimator, told):
    rng = np.random.default_rng(0)
    made = []
    for i, row in enumerate(rows):
        reward = float(rng.integers(0, 3)) / 2
        made.append(Row(i, row.columns, {**dict(row.scalars), "reward": reward, "advantage": estimator(reward, i)}))
    report = check_dataset(Foreign(made), settings=Settings(select=("TM408",)))
    assert "TM408" in report.ran
    assert [finding.cause for finding in report.findings] == told


def test_our_own_rows_with_a_column_of_advantages_are_judged_too(rows):
    del rows
    tokenizer = Tokenizer.load(SMALL)
    made = []
    for i in range(4):
        row = ours(tokenizer, chat(TALK), index=i, group_id=f"g{i // 2}", reward=float(i % 2))
        column = np.where(row["sampled"], i % 2 - 0.5, np.nan).astype(np.float32)
        made.append(changed(row, advantage=column))
    report = check_dataset(Rows(made), tokenizer=tokenizer, settings=Settings(select=("TM408",)))
    assert report.findings == [] and "TM408" in report.ran


def test_rows_that_all_bear_one_number_are_all_gathered_into_groups():
    columns = {"token_ids": np.arange(10, dtype=np.int32), "mask": np.ones(10, bool)}
    rows = [Row(0, columns, {"trace_id": f"t{i}", "group_id": "g", "reward": 1.0}) for i in range(4)]
    report = check_dataset(rows, settings=Settings(select=("TM406",), block_tokens=10))
    assert [finding.message for finding in report.findings] == ["group g: all 4 rewards are 1, so every advantage is 0"]


@pytest.mark.parametrize("tasks", [("x", "y"), (None, "x", "y"), ("x", None, "y")])
def test_rollouts_of_two_tasks_are_told_where_they_have_no_prompt_too(tasks):
    columns = {"token_ids": np.arange(10, dtype=np.int32), "mask": np.ones(10, bool)}
    rows = [Row(i, columns, {"trace_id": f"t{i}", "group_id": "g", "task_id": task}) for i, task in enumerate(tasks)]
    bare = [Row(row.index, {**columns, "mask": np.zeros(10, bool)}, row.scalars) for row in rows]
    for made in (rows, bare):
        report = check_dataset(made, settings=Settings(select=("TM407",)))
        found = [(finding.place.row, finding.message) for finding in report.findings]
        assert found == [(len(tasks) - 1, "group g holds rollouts of 2 tasks")]
