"""One optimizer step: weights, denominators and advantages of its rows, from integer counts. Knows no packing.

Counts are known before the forward pass, so the gradient is the same for any split into micro-batches and ranks:
each rank lays its own rows and one all-reduce of an int64 vector makes the counts global.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tracemask.core.finding import Finding, Place, Severity
from tracemask.recipe.advantage import Advantages
from tracemask.recipe.counting import Reduce, StepCounts, one_rank
from tracemask.recipe.keys import dataset_key, split_rollouts, step_keys, streams
from tracemask.recipe.model import Recipe
from tracemask.recipe.normalize import Tally, denominator
from tracemask.recipe.select import TokenBytes
from tracemask.recipe.weights import lay_row
from tracemask.store.row import Row


@dataclass(slots=True)
class LaidRow:
    """A row: weights float32[T] and denominator float64[T] per component, advantage float64[T] (0 where none)."""

    row: Row
    weights: dict[str, np.ndarray]
    denominator: dict[str, np.ndarray]
    advantage: np.ndarray
    rollout: int
    group: int


@dataclass(slots=True)
class Step:
    """The rows of this rank in order, and the counts of the whole step.

    counts: tokens with weight ≠ 0 per component. tallies: everything a normalizer may read. n_rollouts: N, all ranks.
    dropped: tokens of this rank taken out, by "component.reason". findings: TM601, TM604, TM605.
    """

    rows: list[LaidRow]
    counts: dict[str, int]
    tallies: dict[str, Tally]
    n_rollouts: int
    dropped: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def lay_step(
    recipe: Recipe,
    rows: Sequence[Row],
    advantages: Advantages | Sequence[float] | np.ndarray,
    *,
    reduce: Reduce | None = None,
    policy_version: int | None = None,
    token_bytes: TokenBytes | None = None,
) -> Step:
    """Weights, denominators and advantages of one step's rows (of this rank).

    advantages: of the whole dataset, read at `row.index`; or one number per row given, in order. reduce: sums an int64
    vector over the data-parallel ranks (default: one rank); every rank must call it, with rows or without. A rollout's
    rows lie in one step on one rank; a group's may lie on several when `advantages` is an Advantages.
    Tokens with weight 0 carry their row's denominator, at least 1, so that 0 / Z is 0.
    """
    recipe = Recipe.load(recipe)
    if isinstance(advantages, Advantages):
        keys = [dataset_key(row, advantages) for row in rows]
        counts, split = StepCounts(recipe, n_groups=advantages.n_groups), split_rollouts(rows, keys, advantages)
    else:
        keys = step_keys(recipe, rows, advantages)
        counts, split = StepCounts(recipe), []
    step = Step([], {}, {}, 0)
    first_tokens: dict[str, int] = {}
    for row, key, values in zip(rows, keys, streams(recipe, rows, keys), strict=True):
        laid = lay_row(recipe, row, values, policy_version=policy_version, token_bytes=token_bytes, reason=key.reason)
        counts.add(row, laid.weights, key.rollout, key.group)
        step.rows.append(
            LaidRow(row, laid.weights, {}, np.where(np.isnan(values), 0.0, values), key.rollout, key.group)
        )
        step.dropped.update(laid.dropped)
        for dropped in laid.dropped:
            first_tokens.setdefault(dropped, row.index)
    step.n_rollouts, step.counts, step.tallies = counts.reduced(reduce or one_rank)
    for laid in step.rows:
        laid.denominator = {name: _denominator(recipe, step, laid, name) for name in recipe.components}
    step.findings = _findings(recipe, step, first_tokens, split)
    return step


def _denominator(recipe: Recipe, step: Step, laid: LaidRow, name: str) -> np.ndarray:
    spec = recipe.components[name].normalizer
    z = denominator(spec, step.tallies[name], rollout=laid.rollout, group=laid.group)
    return np.full(len(laid.row), float(z))


def _findings(recipe: Recipe, step: Step, first: dict[str, int], split: list[str]) -> list[Finding]:
    """`first`: the first row that lost a token, by "component.reason"; `split`: rollouts with rows elsewhere."""
    out = []
    if not any(step.counts.values()):
        message = "no token of the step is in the loss: the step's loss is 0"
        out.append(Finding("TM601", message, severity=Severity.ERROR, data={"dropped": dict(step.dropped)}))
    for name in recipe.components:
        if count := step.dropped[f"{name}.first_token"]:
            place = Place(row=first[f"{name}.first_token"], token=0)
            message = f"{count} rows begin with a token of component {name}; nothing predicts it, so its weight is 0"
            out.append(Finding("TM604", message, place, Severity.WARNING, data={"count": count}))
    if split:
        message = f"{len(split)} rollouts lie in this step with only some of their rows: their lengths are too short"
        out.append(Finding("TM605", message, Place(id=split[0]), Severity.WARNING))
    return out
