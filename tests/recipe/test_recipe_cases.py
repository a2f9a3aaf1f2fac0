"""Closed-form numbers from public bug reports, as a table (tests/cases/recipe/cases.json)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipe_rows import PROMPT, lengths, make_row, reply

from tracemask.recipe import Recipe
from tracemask.recipe.advantage import compute
from tracemask.recipe.step import lay_step

CASES: dict[str, Any] = json.loads((Path(__file__).parents[1] / "cases" / "recipe" / "cases.json").read_text("utf-8"))


def policy_gradient(normalizer: str, *, l_max: int = 16, **more: Any) -> Recipe:
    """−A·lp under one normalizer, given advantages."""
    spec: dict[str, Any] = {"name": normalizer} | ({"length": l_max} if normalizer == "constant" else {}) | more
    return Recipe.load(
        {
            "advantage": {"estimator": "given"},
            "filters": {"truncated": "mask"},
            "rl": {"term": "reinforce", "normalizer": spec},
        }
    )


def surrogate(recipe: Recipe, case: dict[str, Any]) -> float:
    """Σ w·(−A·lp)/Z over the case's rollouts, in float64."""
    rows, n = [], len(case["logprobs"])
    for index, values in enumerate(case["logprobs"]):
        column = np.concatenate([np.full(3, np.nan), np.array(values)])
        rows.append(make_row(index, [PROMPT, reply(len(values))], columns={"logprob": column}))
    scalars = {
        "trace_id": [row.scalars["trace_id"] for row in rows],
        "group_id": case.get("groups", ["g"] * n),
        "advantage": case["advantages"],
        "truncated": case.get("truncated", [False] * n),
    }
    step = lay_step(recipe, rows, compute(recipe, scalars))
    total = 0.0
    for laid in step.rows:
        kept = laid.weights["rl"] != 0
        terms = (
            laid.weights["rl"][kept] * -laid.advantage[kept] * laid.row["logprob"][kept] / laid.denominator["rl"][kept]
        )
        total += float(terms.sum())
    return total


@pytest.mark.parametrize("case", CASES["advantages"], ids=lambda case: case["id"])
def test_advantages_are_the_closed_form_numbers(case: dict[str, Any]) -> None:
    spec = {key: case[key] for key in ("estimator", "ddof", "eps") if key in case}
    recipe = Recipe.load({"advantage": spec, "rl": {"term": "reinforce"}})
    n = len(case["rewards"])
    found = compute(recipe, {"trace_id": list(range(n)), "group_id": ["g"] * n, "reward": case["rewards"]})
    expected = np.array([math.nan if value is None else value for value in case["advantages"]])
    np.testing.assert_allclose(found.values, expected, rtol=1e-12, atol=0)
    assert np.flatnonzero(found.excluded).tolist() == case.get("excluded", [])
    assert [finding.code for finding in found.findings] == ["TM603"] * ("excluded" in case)


def pairs() -> list[Any]:
    return [pytest.param(case, name, id=f"{case['id']}-{name}") for case in CASES["losses"] for name in case["values"]]


@pytest.mark.parametrize(("case", "normalizer"), pairs())
def test_losses_are_the_closed_form_numbers(case: dict[str, Any], normalizer: str) -> None:
    value = surrogate(policy_gradient(normalizer, l_max=case["l_max"]), case)
    assert value == pytest.approx(case["values"][normalizer], rel=1e-9)


def test_leaving_an_empty_rollout_out_of_n_is_an_option_of_sequence_mean() -> None:
    case = next(case for case in CASES["losses"] if "leave_out" in case)
    assert surrogate(policy_gradient("sequence_mean", empty="leave_out"), case) == pytest.approx(case["leave_out"])


@pytest.mark.parametrize("normalizer", CASES["length_bias"]["gradient"])
def test_the_normalizer_decides_how_hard_one_token_of_a_long_answer_pushes(normalizer: str) -> None:
    case = CASES["length_bias"]
    recipe = policy_gradient(normalizer, l_max=case["l_max"])
    step = lay_step(recipe, lengths(*case["lengths"]), case["advantages"])
    for laid, expected in zip(step.rows, case["gradient"][normalizer], strict=True):
        kept = laid.weights["rl"] != 0
        gradient = -laid.weights["rl"][kept] * laid.advantage[kept] / laid.denominator["rl"][kept]
        np.testing.assert_allclose(gradient, expected, rtol=1e-12)


def test_auxiliary_tokens_never_dilute_the_policy_term() -> None:
    recipe = Recipe.load("echo")
    runs = [PROMPT, reply(2), ("environment", "tool", "tool_output", 97), reply(1)]
    step = lay_step(recipe, [make_row(0, runs)], [1.0])
    assert step.counts == {"rl": 3, "ce": 97}
    rl, ce = (step.rows[0].denominator[name][5] for name in ("rl", "ce"))
    assert 3.0 / rl + 0.1 * 48.5 / ce == pytest.approx(1.05)


def test_zero_advantage_tokens_leave_rl_and_keep_their_cross_entropy() -> None:
    recipe = Recipe.load("echo")
    rows = [
        make_row(0, [PROMPT, reply(2), ("environment", "tool", "tool_output", 2)]),
        make_row(1, [PROMPT, reply(1), ("environment", "tool", "tool_output", 1)]),
    ]
    found = compute(recipe, {"trace_id": ["t0", "t1"], "group_id": ["g", "g"], "reward": [1.0, 1.0]})
    step = lay_step(recipe, rows, found)
    assert found.values.tolist() == [0.0, 0.0]
    assert step.counts == {"rl": 0, "ce": 3}
    assert step.dropped == {"rl.zero_advantage": 3}
    assert step.findings == []
    assert {laid.denominator["rl"][0] for laid in step.rows} == {1.0}
