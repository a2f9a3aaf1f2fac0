"""One optimizer step: weights, denominators and advantages of its rows, from integer counts. Knows no packing.

Counts are known before the forward pass, so the gradient is the same for any split into micro-batches and ranks:
each rank lays its own rows and one all-reduce of an int64 vector makes the counts global.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracemask.core.errors import RecipeError
from tracemask.core.finding import Finding, Place, Severity
from tracemask.recipe.advantage import REASONS, Advantages
from tracemask.recipe.component import Component
from tracemask.recipe.model import PER_TOKEN, Recipe
from tracemask.recipe.normalize import NORMALIZERS, Tally
from tracemask.recipe.select import TokenBytes, admits, observation_tokens
from tracemask.recipe.token_advantage import branch_means, token_advantage
from tracemask.recipe.weights import is_trainable, lay_row, wrote_something
from tracemask.store.row import Row

Reduce = Callable[[np.ndarray], np.ndarray]


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
    keys = _keys(recipe, rows, advantages)
    step = Step([], {}, {}, 0)
    first_tokens: dict[str, int] = {}
    for at, (row, stream) in enumerate(zip(rows, _advantage_streams(recipe, rows, keys), strict=True)):
        laid = lay_row(
            recipe, row, stream, policy_version=policy_version, token_bytes=token_bytes, reason=keys.reason[at]
        )
        step.dropped.update(laid.dropped)
        for name in recipe.components:
            if f"{name}.first_token" in laid.dropped:
                first_tokens.setdefault(name, row.index)
        clean = np.where(np.isnan(stream), 0.0, stream)
        step.rows.append(LaidRow(row, laid.weights, {}, clean, keys.rollout[at], keys.group[at]))
    _count(recipe, step, keys, reduce or _alone)
    for laid in step.rows:
        laid.denominator = {name: _denominator(recipe, step, laid, name) for name in recipe.components}
    _report(step, keys, first_tokens)
    return step


def _alone(counts: np.ndarray) -> np.ndarray:
    """The all-reduce of a single rank."""
    return counts


def _denominator(recipe: Recipe, step: Step, laid: LaidRow, name: str) -> np.ndarray:
    spec = recipe.components[name].normalizer
    z = NORMALIZERS[spec.effective](step.tallies[name], spec, laid.rollout, laid.group)
    return np.full(len(laid.row), float(max(z, 1)))


@dataclass(slots=True)
class _Keys:
    """Per row: rollout and group number, scalar advantage, why a NaN is one. n_groups > 0: numbers are dataset-wide."""

    rollout: list[int]
    group: list[int]
    advantage: list[float]
    reason: list[str]
    n_groups: int = 0
    split: list[str] = field(default_factory=list)


def _keys(recipe: Recipe, rows: Sequence[Row], advantages: Advantages | Sequence[float] | np.ndarray) -> _Keys:
    if isinstance(advantages, Advantages):
        return _dataset_keys(rows, advantages)
    if len(advantages) != len(rows):
        what = f"{len(advantages)} advantages for {len(rows)} rows"
        raise RecipeError("TM950", where="lay_step", what=what, fix="give one per row, or an Advantages")
    rollouts: dict[object, int] = {}
    groups: dict[object, int] = {}
    keys = _Keys([], [], [float(value) for value in advantages], ["missing_reward"] * len(rows))
    for number, row in enumerate(rows):
        trace = row.scalars.get("trace_id") if recipe.group.rollout == "trace" else None
        rollout = rollouts.setdefault(("", number) if trace is None else trace, len(rollouts))
        by = (recipe.group.by,) if recipe.group.by else ("group_id", "task_id")
        group = next((name_value for name in by if (name_value := row.scalars.get(name)) is not None), ("", rollout))
        keys.rollout.append(rollout)
        keys.group.append(groups.setdefault(group, len(groups)))
    return keys


def _dataset_keys(rows: Sequence[Row], advantages: Advantages) -> _Keys:
    at = np.array([row.index for row in rows], dtype=np.int64)
    if len(at) and (at.min() < 0 or at.max() >= len(advantages)):
        what = f"row {at.max()} has no advantage: {len(advantages)} were computed"
        raise RecipeError("TM950", where="lay_step", what=what, fix="compute them from the scalars of the same dataset")
    rollouts = advantages.rollout[at].tolist()
    here = Counter(rollouts)
    partial = {key for key, count in here.items() if count != advantages.rows_in_rollout[key]}
    split = {str(row.scalars.get("trace_id", key)) for row, key in zip(rows, rollouts, strict=True) if key in partial}
    return _Keys(
        rollouts,
        advantages.group[at].tolist(),
        advantages.values[at].tolist(),
        [REASONS[code] or "missing_reward" for code in advantages.reason[at]],
        advantages.n_groups,
        sorted(split),
    )


def _advantage_streams(recipe: Recipe, rows: Sequence[Row], keys: _Keys) -> list[np.ndarray]:
    """float64[T] per row: broadcast, per token, or the mean over the branches that share a token."""
    if recipe.advantage.estimator in PER_TOKEN:
        return [
            token_advantage(recipe, row, value, excluded=why if np.isnan(value) else "")
            for row, value, why in zip(rows, keys.advantage, keys.reason, strict=True)
        ]
    streams = [np.full(len(row), value) for row, value in zip(rows, keys.advantage, strict=True)]
    if recipe.advantage.shared == "mean_of_branches":
        branch_means(rows, streams)
    return streams


def _count(recipe: Recipe, step: Step, keys: _Keys, reduce: Reduce) -> None:
    """Local counts, one all-reduce, tallies."""
    trained = {laid.rollout for laid in step.rows if is_trainable(laid.row)}
    vector = [np.array([len(trained)], dtype=np.int64)]
    for name, component in recipe.components.items():
        tally = step.tallies[name] = _local(component, name, step, trained)
        selected = sum(int(np.count_nonzero(laid.weights[name])) for laid in step.rows)
        sums = [selected, tally.tokens, tally.rollouts, tally.nonempty, len(tally.of_group)]
        vector.append(np.array(sums, dtype=np.int64))
        if _spread(component, keys):
            vector.append(_dense(tally.of_group, keys.n_groups))
            vector.append(_dense(dict.fromkeys(tally.of_group, 1), keys.n_groups))
    total = reduce(np.concatenate(vector))
    step.n_rollouts, at = int(total[0]), 1
    for name, component in recipe.components.items():
        tally = step.tallies[name]
        step.counts[name], tally.tokens, tally.rollouts, tally.nonempty, tally.groups = total[at : at + 5].tolist()
        at += 5
        if _spread(component, keys):
            tokens, ranks = total[at : at + keys.n_groups], total[at + keys.n_groups : at + 2 * keys.n_groups]
            tally.of_group = {int(group): int(tokens[group]) for group in np.flatnonzero(ranks)}
            tally.groups = len(tally.of_group)
            at += 2 * keys.n_groups


def _spread(component: Component, keys: _Keys) -> bool:
    """The component needs counts per group, and groups have dataset-wide numbers, so that they may span ranks."""
    return component.normalizer.effective == "prompt_mean" and keys.n_groups > 0


def _dense(counts: dict[int, int], n: int) -> np.ndarray:
    out = np.zeros(n, dtype=np.int64)
    out[list(counts)] = list(counts.values())
    return out


def _local(component: Component, name: str, step: Step, trained: set[int]) -> Tally:
    """This rank's counts of one component, over the rollouts scheduled for it."""
    tally = Tally()
    admitted = [laid for laid in step.rows if laid.rollout in trained and admits(component, laid.row)]
    scheduled = {laid.rollout for laid in admitted if not component.policy_only or wrote_something(laid.row)}
    for laid in admitted:
        if laid.rollout not in scheduled:
            continue
        counted = laid.weights[name]
        if component.normalizer.count == "all_observations":
            counted = observation_tokens(laid.row)
        count = int(np.count_nonzero(counted))
        tally.of_rollout[laid.rollout] = tally.of_rollout.get(laid.rollout, 0) + count
        tally.of_group[laid.group] = tally.of_group.get(laid.group, 0) + count
    tally.tokens = sum(tally.of_rollout.values())
    tally.rollouts = len(scheduled)
    tally.nonempty = sum(count > 0 for count in tally.of_rollout.values())
    return tally


def _report(step: Step, keys: _Keys, first_tokens: dict[str, int]) -> None:
    if not any(step.counts.values()):
        message = "no token of the step is in the loss: the step's loss is 0"
        step.findings.append(Finding("TM601", message, severity=Severity.ERROR, data={"dropped": dict(step.dropped)}))
    for name, row in first_tokens.items():
        count = step.dropped[f"{name}.first_token"]
        message = f"{count} rows begin with a token of component {name}; nothing predicts it, so its weight is 0"
        step.findings.append(
            Finding("TM604", message, Place(row=row, token=0), Severity.WARNING, data={"count": count})
        )
    if keys.split:
        message = (
            f"{len(keys.split)} rollouts lie in this step with only some of their rows: their lengths are too short"
        )
        step.findings.append(Finding("TM605", message, Place(id=keys.split[0]), Severity.WARNING))
