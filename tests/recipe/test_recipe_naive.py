"""The whole loss against an independent implementation: plain loops over tokens, written from the formulas alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recipe_rows import Run, make_row

from tracemask.core.vocab import Author, Part, Role
from tracemask.recipe import Recipe
from tracemask.recipe.advantage import compute
from tracemask.recipe.step import Step, lay_step
from tracemask.store.row import Row

RUNS: list[Run] = [
    ("policy", "assistant", "reasoning", 1),
    ("policy", "assistant", "content", 2),
    ("policy", "assistant", "stop", 1),
    ("renderer", "tool", "header", 2),
    ("environment", "tool", "tool_output", 3),
    ("user", "user", "content", 1),
    ("model", "assistant", "content", 2),
]
ROLLOUT = st.tuples(st.lists(st.sampled_from(range(len(RUNS))), min_size=1, max_size=6), st.integers(0, 2))
STEP = st.lists(ROLLOUT, min_size=1, max_size=6)


@dataclass
class Token:
    author: str
    role: str
    part: str
    logprob: float


def tokens_of(rows: list[Row], seed: int) -> list[list[Token]]:
    """Random log-probs beside the facts of each token."""
    rng = np.random.default_rng(seed)
    out = []
    for row in rows:
        facts = zip(row["author"].tolist(), row["role"].tolist(), row["part"].tolist(), strict=True)
        spelled = [(Author(a).label, Role(r).label, Part(p).label) for a, r, p in facts]
        out.append(
            [Token(*each, float(value)) for each, value in zip(spelled, -rng.exponential(size=len(row)), strict=True)]
        )
    return out


def rows_of(spec: list[tuple[list[int], int]]) -> list[Row]:
    prompt: Run = ("taskset", "user", "content", 1)
    return [
        make_row(index, [prompt, *(RUNS[at] for at in runs)], group_id=f"g{group}")
        for index, (runs, group) in enumerate(spec)
    ]


def by_step(step: Step, recipe: Recipe, tokens: list[list[Token]]) -> float:
    """Σ_c coef Σ_t w·term/Z with −A·lp for rl and −lp for ce."""
    total = 0.0
    for laid, row in zip(step.rows, tokens, strict=True):
        lp = np.array([token.logprob for token in row])
        for name, component in recipe.components.items():
            term = -laid.advantage * lp if name == "rl" else -lp
            total += component.coef * float(
                (laid.weights[name].astype(np.float64) * term / laid.denominator[name]).sum()
            )
    return total


def observed(row: list[Token]) -> list[Token]:
    """prime-rl's observations: bodies of tool messages after the first policy token."""
    out, seen = [], False
    for token in row:
        if seen and token.role == "tool" and token.part == "tool_output":
            out.append(token)
        seen = seen or token.author == "policy"
    return out


def everything_observed(row: list[Token]) -> list[Token]:
    out, seen = [], False
    for token in row:
        bodies = ("content", "tool_output", "reasoning", "tool_call")
        if seen and token.author not in ("policy", "renderer") and token.part in bodies:
            out.append(token)
        seen = seen or token.author == "policy"
    return out


def naive_echo(tokens: list[list[Token]], advantages: list[float]) -> float:
    """prime-rl: zero-advantage tokens out of rl and its count; ce over the step's selected observations, weight 0.1."""
    rl_sum, rl_count, ce_sum, ce_count = 0.0, 0, 0.0, 0
    for row, advantage in zip(tokens, advantages, strict=True):
        for token in row:
            if token.author == "policy" and advantage != 0:
                rl_sum += -advantage * token.logprob
                rl_count += 1
        for token in observed(row):
            ce_sum += float(np.float32(0.1)) * -token.logprob
            ce_count += 1
    return (rl_sum / rl_count if rl_count else 0.0) + (ce_sum / ce_count if ce_count else 0.0)


def naive_echo_paper(tokens: list[list[Token]], advantages: list[float]) -> float:
    """(1/N) Σ_i (1/L_i) Σ −A·lp over rollouts, + 0.1·(1/N') Σ_i (1/|O_i|) Σ_{O'_i} −lp over those with observations."""
    rollouts = [row for row in tokens if any(token.author == "policy" for token in row)]
    rl = ce = 0.0
    for row, advantage in zip(tokens, advantages, strict=True):
        own = [token for token in row if token.author == "policy"]
        if own:
            rl += sum(-advantage * token.logprob for token in own) / len(own)
    watching = [row for row in tokens if everything_observed(row)]
    for row in watching:
        ce += sum(-token.logprob for token in observed(row)) / len(everything_observed(row))
    return (rl / len(rollouts) if rollouts else 0.0) + (0.1 * ce / len(watching) if watching else 0.0)


def naive_dr_grpo(tokens: list[list[Token]], advantages: list[float]) -> float:
    n = sum(any(token.author == "policy" for token in row) for row in tokens)
    total = 0.0
    for row, advantage in zip(tokens, advantages, strict=True):
        total += sum(-advantage * token.logprob for token in row if token.author == "policy")
    return total / (n * 4096) if n else 0.0


def naive_sft(tokens: list[list[Token]], advantages: list[float]) -> float:
    kept = [
        token
        for row in tokens
        for token in row
        if token.role == "assistant"
        and token.author in ("policy", "model")
        and token.part in ("reasoning", "content", "tool_call", "stop")
    ]
    return sum(-token.logprob for token in kept) / len(kept) if kept else 0.0


NAIVE: dict[str, Any] = {
    "echo": naive_echo,
    "echo_paper": naive_echo_paper,
    "dr_grpo": naive_dr_grpo,
    "sft": naive_sft,
}


@pytest.mark.parametrize("name", list(NAIVE))
@given(spec=STEP, seed=st.integers(0, 999))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_the_loss_is_the_naive_loss(name: str, spec: list[tuple[list[int], int]], seed: int) -> None:
    recipe, rows = Recipe.load(name), rows_of(spec)
    tokens = tokens_of(rows, seed)
    rewards = np.random.default_rng(seed).choice([0.0, 1.0, 0.3], size=len(rows)).tolist()
    scalars = {key: [row.scalars[key] for row in rows] for key in ("trace_id", "group_id")}
    advantages = compute(recipe, scalars | {"reward": rewards})
    found = by_step(lay_step(recipe, rows, advantages), recipe, tokens)
    assert found == pytest.approx(NAIVE[name](tokens, advantages.values.tolist()), rel=1e-9, abs=1e-12)


@given(spec=STEP, seed=st.integers(0, 999), more=STEP)
@settings(max_examples=30, derandomize=True, deadline=None)
def test_demonstrations_beside_rollouts_change_no_policy_coefficient(
    spec: list[tuple[list[int], int]], seed: int, more: list[tuple[list[int], int]]
) -> None:
    """Rows that the policy did not write in never move the weight of those it did, under any normalizer."""
    demonstrations = [([at for at in runs if RUNS[at][0] != "policy"] or [6], group) for runs, group in more]
    rows = rows_of(spec)
    both = rows_of(spec + [(runs, group + 10) for runs, group in demonstrations])
    for normalizer in ("token_mean", "sequence_mean", "sum_per_rollout", "prompt_mean"):
        recipe = Recipe.load(
            {"advantage": {"estimator": "reward"}, "rl": {"term": "reinforce", "normalizer": normalizer}}
        )
        alone = lay_step(recipe, rows, [1.0] * len(rows))
        beside = lay_step(recipe, both, [1.0] * len(both))
        for first, second in zip(alone.rows, beside.rows, strict=False):
            kept = first.weights["rl"] != 0
            assert first.denominator["rl"][kept].tolist() == second.denominator["rl"][kept].tolist()
