"""Denominators of a step: formulas, invariance to order, splits and ranks, and the two ways ECHO divides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_rows import PROMPT, lengths, make_row, naive_denominators, reply, tool

from tracemask.core.errors import RecipeError
from tracemask.core.vocab import Author
from tracemask.recipe import Recipe
from tracemask.recipe.advantage import Advantages, compute
from tracemask.recipe.normalize import NORMALIZERS
from tracemask.recipe.step import LaidRow, Step, lay_step
from tracemask.store.row import Row

L_MAX = 64


def recipe_of(normalizer: str, **more: Any) -> Recipe:
    spec = {"name": normalizer, **more} | ({"length": L_MAX} if normalizer == "constant" else {})
    return Recipe.load({"advantage": {"estimator": "reward"}, "rl": {"term": "reinforce", "normalizer": spec}})


def scalars_of(rows: Sequence[Row], reward: float = 1.0) -> dict[str, list[Any]]:
    names = ("trace_id", "group_id", "trainable", "truncated")
    columns: dict[str, list[Any]] = {name: [row.scalars.get(name) for row in rows] for name in names}
    return columns | {"reward": [reward] * len(rows)}


def coefficients(laid: LaidRow, name: str = "rl") -> np.ndarray:
    """w / Z of each trained token."""
    kept = laid.weights[name] != 0
    return laid.weights[name][kept].astype(np.float64) / laid.denominator[name][kept]


def on_ranks(recipe: Recipe, shares: Sequence[Sequence[Row]], advantages: Advantages) -> list[Step]:
    """What each rank computes: every rank's local vector is summed, as an all-reduce would."""
    vectors: list[np.ndarray] = []

    def listen(counts: np.ndarray) -> np.ndarray:
        vectors.append(counts.copy())
        return counts

    for share in shares:
        lay_step(recipe, share, advantages, reduce=listen)
    assert {vector.dtype for vector in vectors} == {np.dtype(np.int64)}
    total = np.sum(vectors, axis=0)
    return [lay_step(recipe, share, advantages, reduce=lambda counts: total) for share in shares]


rollouts = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), min_size=1, max_size=8)


def rows_of(spec: Sequence[tuple[int, int]]) -> list[Row]:
    """Rollout i has n policy tokens and lies in group g; 0 tokens: the policy's only token is the row's first."""
    rows = []
    for index, (n, group) in enumerate(spec):
        runs = [reply(1), tool(3), reply(n)] if n else [reply(1), tool(3)]
        rows.append(make_row(index, runs, group_id=f"g{group}"))
    return rows


@pytest.mark.parametrize("normalizer", list(NORMALIZERS))
@given(spec=rollouts)
@settings(max_examples=40, derandomize=True, deadline=None)
def test_denominators_are_the_formulas(normalizer: str, spec: list[tuple[int, int]]) -> None:
    rows = rows_of(spec)
    counts, groups = [n for n, _ in spec], [g for _, g in spec]
    recipe = recipe_of(normalizer)
    step = lay_step(recipe, rows, compute(recipe, scalars_of(rows)))
    if not sum(counts):
        assert [finding.code for finding in step.findings if finding.code == "TM601"] == ["TM601"]
        return
    expected = naive_denominators(normalizer, counts, groups, L_MAX)
    for laid, each, count in zip(step.rows, expected, counts, strict=True):
        np.testing.assert_allclose(coefficients(laid), [float(each)] * count, rtol=1e-15)


@pytest.mark.parametrize("normalizer", list(NORMALIZERS))
@given(spec=rollouts, order=st.randoms(use_true_random=False), cut=st.lists(st.integers(0, 3), min_size=8, max_size=8))
@settings(max_examples=25, derandomize=True, deadline=None)
def test_denominators_do_not_depend_on_order_or_ranks(
    normalizer: str, spec: list[tuple[int, int]], order: Any, cut: list[int]
) -> None:
    rows = rows_of(spec)
    recipe = recipe_of(normalizer)
    advantages = compute(recipe, scalars_of(rows))
    alone = {laid.row.index: laid.denominator["rl"] for laid in lay_step(recipe, rows, advantages).rows}
    shuffled = rows.copy()
    order.shuffle(shuffled)
    shares = [[row for row in shuffled if cut[row.index] == rank] for rank in range(4)]
    for step in on_ranks(recipe, shares, advantages):
        assert step.n_rollouts == len(rows)
        for laid in step.rows:
            assert laid.denominator["rl"].tolist() == alone[laid.row.index].tolist()


def test_an_empty_rank_calls_the_all_reduce_with_a_vector_of_the_same_length() -> None:
    recipe = Recipe.load({"extends": "echo", "rl": {"normalizer": "prompt_mean"}})
    rows = [make_row(index, [PROMPT, reply(3), tool(2)], group_id=f"g{index}") for index in range(3)]
    advantages = compute(recipe, scalars_of(rows) | {"reward": [1.0, 0.0, 0.5], "group_id": ["g", "g", "g"]})
    steps = on_ranks(recipe, [[], rows], advantages)
    assert steps[0].counts == steps[1].counts == {"rl": 6, "ce": 6}
    assert steps[0].rows == []
    assert steps[0].findings == []


@given(spec=rollouts)
@settings(max_examples=25, derandomize=True, deadline=None)
def test_a_token_mean_adds_up_to_one(spec: list[tuple[int, int]]) -> None:
    rows = rows_of(spec)
    for name in ("token_mean", "sequence_mean", "prompt_mean"):
        recipe = recipe_of(name, **({"empty": "leave_out"} if name == "sequence_mean" else {}))
        step = lay_step(recipe, rows, compute(recipe, scalars_of(rows)))
        total = sum(coefficients(laid).sum() for laid in step.rows)
        groups = {g for _, g in spec}
        alive = {g for n, g in spec if n}
        share = len(alive) / len(groups) if name == "prompt_mean" else float(bool(alive))
        assert total == pytest.approx(share)


def test_masking_one_rollout_of_dr_grpo_does_not_change_another() -> None:
    recipe = Recipe.load({"extends": "dr_grpo", "filters": {"truncated": "mask"}})
    rows = lengths(4, 6)
    scalars = scalars_of(rows) | {"reward": [1.0, 0.0]}
    whole = lay_step(recipe, rows, compute(recipe, scalars))
    masked = lay_step(recipe, rows, compute(recipe, scalars | {"truncated": [False, True]}))
    assert coefficients(whole.rows[0]).tolist() == coefficients(masked.rows[0]).tolist() == [1 / 8192] * 4
    assert coefficients(masked.rows[1]).size == 0
    assert masked.dropped == {"rl.truncated": 6}


def test_a_weight_of_zero_leaves_mask_and_count() -> None:
    rule = [{"parts": ["reasoning"], "weight": 0.0}, {"sampled": True, "weight": 0.5}]
    recipe = Recipe.load({"advantage": {"estimator": "reward"}, "rl": {"term": "reinforce", "select": rule}})
    row = make_row(0, [PROMPT, ("policy", "assistant", "reasoning", 9), reply(2)])
    step = lay_step(recipe, [row], [1.0])
    assert step.counts == {"rl": 2}
    assert coefficients(step.rows[0]).tolist() == [0.25, 0.25]


def test_the_rows_of_a_trace_are_one_rollout() -> None:
    recipe = Recipe.load("grpo")
    rows = [
        make_row(0, [PROMPT, reply(2)], trace_id="a", branch=0),
        make_row(1, [PROMPT, reply(6)], trace_id="a", branch=1),
        make_row(2, [PROMPT, reply(4)], trace_id="b"),
    ]
    advantages = compute(recipe, scalars_of(rows) | {"reward": [1.0, 1.0, 0.0]})
    step = lay_step(recipe, rows, advantages)
    assert step.n_rollouts == 2
    assert [laid.denominator["rl"][0] for laid in step.rows] == [16.0, 16.0, 8.0]
    assert np.sign(advantages.values).tolist() == [1, 1, -1]


def test_a_rollout_with_some_of_its_rows_missing_is_reported() -> None:
    recipe = Recipe.load("grpo")
    rows = [make_row(0, [PROMPT, reply(2)], trace_id="a"), make_row(1, [PROMPT, reply(6)], trace_id="a")]
    advantages = compute(recipe, scalars_of(rows))
    step = lay_step(recipe, rows[:1], advantages)
    assert [finding.code for finding in step.findings] == ["TM605"]


def echo_rows() -> list[Row]:
    """Observations: 4 in the first rollout, 1 in the second, none in the third."""
    return [
        make_row(0, [PROMPT, reply(2), tool(3), ("user", "user", "content", 1), reply(1)]),
        make_row(1, [PROMPT, reply(5), tool(1)]),
        make_row(2, [PROMPT, reply(4)]),
    ]


def test_the_two_denominators_of_echo() -> None:
    rows = echo_rows()
    prime = lay_step(Recipe.load("echo"), rows, [1.0, -1.0, 0.5])
    paper = lay_step(Recipe.load("echo_paper"), rows, [1.0, -1.0, 0.5])
    assert [laid.denominator["ce"][0] for laid in prime.rows] == [4.0, 4.0, 4.0]
    assert [laid.denominator["ce"][0] for laid in paper.rows] == [2.0 * 4, 2.0 * 1, 1.0]
    assert prime.counts["ce"] == paper.counts["ce"] == 4
    assert [laid.denominator["rl"][0] for laid in prime.rows] == [12.0] * 3
    assert [laid.denominator["rl"][0] for laid in paper.rows] == [9.0, 15.0, 12.0]


def test_prime_rl_s_three_components_have_three_counts() -> None:
    recipe = Recipe.load(
        {
            "extends": "echo",
            "ref_kl": {"term": "ref_kl", "select": [{"sampled": True, "parts": ["reasoning"]}]},
        }
    )
    row = make_row(0, [PROMPT, ("policy", "assistant", "reasoning", 5), reply(2), tool(4), reply(1)])
    flat = make_row(1, [PROMPT, reply(6), tool(3)])
    step = lay_step(recipe, [row, flat], [1.0, 0.0])
    assert step.counts == {"rl": 8, "ce": 7, "ref_kl": 5}
    assert [step.rows[1].denominator[name][0] for name in ("rl", "ce", "ref_kl")] == [8.0, 7.0, 5.0]
    overlap = (step.rows[0].weights["rl"] != 0) & (step.rows[0].weights["ref_kl"] != 0)
    assert overlap.sum() == 5


def test_demonstrations_are_not_in_the_n_of_the_policy_term() -> None:
    recipe = Recipe.load(
        {
            "advantage": {"estimator": "reward"},
            "rl": {"term": "reinforce", "normalizer": "sum_per_rollout"},
            "ce": Recipe.load("sft").components["ce"].model_dump(),
        }
    )
    demonstration = make_row(1, [PROMPT, ("model", "assistant", "content", 4)], fidelity="messages")
    step = lay_step(recipe, [make_row(0, [PROMPT, reply(3)]), demonstration], [1.0, float("nan")])
    assert step.rows[0].denominator["rl"][0] == 1.0
    assert step.counts == {"rl": 3, "ce": 7}


def test_untrainable_rollouts_are_not_scheduled() -> None:
    recipe = recipe_of("sum_per_rollout")
    rows = [make_row(0, [PROMPT, reply(3)]), make_row(1, [PROMPT, reply(3)], trainable=False)]
    step = lay_step(recipe, rows, compute(recipe, scalars_of(rows)))
    assert step.n_rollouts == 1
    assert step.rows[0].denominator["rl"][0] == 1.0
    assert not step.rows[1].weights["rl"].any()


def test_a_step_with_nothing_selected_reports_tm601_and_divides_by_one() -> None:
    step = lay_step(Recipe.load("dppo"), lengths(3, 4), [0.0, 0.0])
    assert [finding.code for finding in step.findings] == ["TM601"]
    assert step.counts == {"rl": 0}
    assert {laid.denominator["rl"][0] for laid in step.rows} == {1.0}


def test_a_row_that_begins_with_a_trained_token_is_reported_once_per_component() -> None:
    rows = [make_row(7, [reply(3)]), make_row(8, [reply(3)])]
    step = lay_step(recipe_of("token_mean"), rows, [1.0, 1.0])
    finding = step.findings[0]
    assert (finding.code, finding.place.row, finding.place.token) == ("TM604", 7, 0)
    assert finding.data == {"count": 2}
    assert step.counts == {"rl": 4}


def test_a_missing_advantage_is_zero_in_the_stream_and_zero_in_the_weight() -> None:
    step = lay_step(recipe_of("token_mean"), lengths(2, 3), [1.0, float("nan")])
    assert step.rows[1].advantage.tolist() == [0.0] * 6
    assert not step.rows[1].weights["rl"].any()
    assert step.counts == {"rl": 2}


def test_advantages_must_belong_to_the_rows() -> None:
    with pytest.raises(RecipeError, match="1 advantages for 2 rows"):
        lay_step(recipe_of("sum"), lengths(2, 3), [1.0])
    few = compute(recipe_of("sum"), scalars_of(lengths(1)))
    with pytest.raises(RecipeError, match="row 1 has no advantage"):
        lay_step(recipe_of("sum"), lengths(2, 3), few)


def test_scope_and_count_of_a_token_mean() -> None:
    for scope, expected in (("step", [5.0, 5.0]), ("sequence", [8.0, 2.0])):
        recipe = Recipe.load(
            {
                "ce": {
                    "term": "ce",
                    "normalizer": {"name": "token_mean", "scope": scope, "count": "all_observations"},
                    "select": [{"authors": ["environment"], "after_reply": True}],
                }
            }
        )
        step = lay_step(recipe, echo_rows()[:2], [0.0, 0.0])
        assert [laid.denominator["ce"][0] for laid in step.rows] == expected


def test_branches_share_the_mean_of_their_advantages_where_asked() -> None:
    recipe = Recipe.load(
        {
            "advantage": {"estimator": "reward", "shared": "mean_of_branches"},
            "group": {"rollout": "row"},
            "rl": {"term": "reinforce"},
        }
    )
    rows = [
        make_row(0, [PROMPT, reply(6)], trace_id="a", branch=0),
        make_row(1, [PROMPT, reply(6)], trace_id="a", branch=1, fork_row=0, fork_position=5),
        make_row(2, [PROMPT, reply(6)], trace_id="a", branch=2, fork_row=1, fork_position=7),
    ]
    for row, upto in zip(rows, (0, 5, 7), strict=True):
        row.columns["sampled"] = row["author"] == int(Author.POLICY)
        row.columns["sampled"][:upto] = False
    advantages = compute(recipe, scalars_of(rows) | {"reward": [3.0, 0.0, 6.0]})
    step = lay_step(recipe, rows, advantages)
    assert step.rows[0].advantage.tolist() == [3.0] * 5 + [3.0] * 4
    assert step.rows[1].advantage[5:].tolist() == [3.0, 3.0, 0.0, 0.0]
    assert step.rows[2].advantage[7:].tolist() == [6.0, 6.0]
    owner = recipe.model_copy(update={"advantage": recipe.advantage.model_copy(update={"shared": "owner"})})
    assert lay_step(owner, rows, advantages).rows[1].advantage.tolist() == [0.0] * 9
