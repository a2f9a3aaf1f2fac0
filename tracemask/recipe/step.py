"""One optimizer step: weights, denominators and advantages of its rows, from integer counts. Knows no packing, no torch.

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
from tracemask.recipe.weights import lay_row, wrote_something
from tracemask.store.row import Row

Reduce = Callable[[np.ndarray], np.ndarray]


@dataclass(slots=True)
class LaidRow:
    """A row with weights float32[T] and denominator float64[T] per component, and advantage float64[T] (0 where none)."""

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
    streams = _advantage_streams(recipe, rows, keys)
    for row, stream, at in zip(rows, streams, range(len(rows)), strict=True):
        laid = lay_row(
            recipe, row, stream, policy_version=policy_version, token_bytes=token_bytes, reason=keys.reason[at]
        )
        step.dropped.update(laid.dropped)
        clean = np.where(np.isnan(stream), 0.0, stream)
        step.rows.append(LaidRow(row, laid.weights, {}, clean, keys.rollout[at], keys.group[at]))
    _count(recipe, step, keys, reduce or (lambda counts: counts))
    for laid in step.rows:
        for name, component in recipe.components.items():
            z = NORMALIZERS[component.normalizer.effective](
                step.tallies[name], component.normalizer, laid.rollout, laid.group
            )
            laid.denominator[name] = np.full(len(laid.row), float(max(z, 1)))
    _report(recipe, step, keys)
    return step


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
        at = [row.index for row in rows]
        keys = _Keys(
            advantages.rollout[at].tolist() if at else [],
            advantages.group[at].tolist() if at else [],
            advantages.values[at].tolist() if at else [],
            [REASONS[code] or "missing_reward" for code in (advantages.reason[at] if at else ())],
            advantages.n_groups,
        )
        whole = np.bincount(advantages.rollout, minlength=advantages.n_rollouts)
        here = Counter(keys.rollout)
        keys.split = [str(rows[keys.rollout.index(k)].scalars.get("trace_id", k)) for k in here if here[k] != whole[k]]
        return keys
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
    trained = {laid.rollout for laid in step.rows if laid.row.scalars.get("trainable") is not False}
    vector = [np.array([len(trained)], dtype=np.int64)]
    selected: dict[str, int] = {}
    for name, component in recipe.components.items():
        tally = _local(component, name, step, trained)
        step.tallies[name] = tally
        selected[name] = sum(int(np.count_nonzero(laid.weights[name])) for laid in step.rows)
        vector.append(np.array([selected[name], tally.tokens, tally.rollouts, tally.nonempty, tally.groups], dtype=np.int64))
        if component.normalizer.name == "prompt_mean" and keys.n_groups:
            vector.append(_dense(tally.of_group, keys.n_groups))
            vector.append(_dense({laid.group: 1 for laid in step.rows if laid.rollout in trained}, keys.n_groups))
    total = reduce(np.concatenate(vector))
    step.n_rollouts, at = int(total[0]), 1
    for name, component in recipe.components.items():
        tally = step.tallies[name]
        step.counts[name], tally.tokens, tally.rollouts, tally.nonempty, tally.groups = total[at : at + 5].tolist()
        at += 5
        if component.normalizer.name == "prompt_mean" and keys.n_groups:
            tokens, present = total[at : at + keys.n_groups], total[at + keys.n_groups : at + 2 * keys.n_groups]
            tally.of_group = {int(group): int(tokens[group]) for group in np.flatnonzero(present)}
            tally.groups = int(np.count_nonzero(present))
            at += 2 * keys.n_groups


def _dense(counts: dict[int, int], n: int) -> np.ndarray:
    out = np.zeros(n, dtype=np.int64)
    for key, value in counts.items():
        out[key] = value
    return out


def _local(component: Component, name: str, step: Step, trained: set[int]) -> Tally:
    """This rank's counts of one component."""
    tally, scheduled = Tally(), set()
    for laid in step.rows:
        if laid.rollout not in trained or not admits(component, laid.row):
            continue
        if not component.policy_only or wrote_something(laid.row):
            scheduled.add(laid.rollout)
        counted = laid.weights[name]
        if component.normalizer.count == "all_observations":
            counted = observation_tokens(laid.row)
        count = int(np.count_nonzero(counted))
        tally.of_rollout[laid.rollout] = tally.of_rollout.get(laid.rollout, 0) + count
        tally.of_group[laid.group] = tally.of_group.get(laid.group, 0) + count
    tally.tokens = sum(tally.of_rollout.values())
    tally.rollouts = len(scheduled)
    tally.nonempty = sum(1 for rollout, count in tally.of_rollout.items() if count and rollout in scheduled)
    tally.groups = len({laid.group for laid in step.rows if laid.rollout in scheduled})
    return tally


def _report(recipe: Recipe, step: Step, keys: _Keys) -> None:
    if not any(step.counts.values()):
        message = "no token of the step is in the loss: the step's loss is 0"
        step.findings.append(Finding("TM601", message, severity=Severity.ERROR, data={"dropped": dict(step.dropped)}))
    first = {key.removesuffix(".first_token"): n for key, n in step.dropped.items() if key.endswith(".first_token")}
    for name, count in first.items():
        at = next(laid.row.index for laid in step.rows if len(laid.row))
        message = f"{count} rows begin with a token of component {name}; nothing predicts it, so its weight is 0"
        step.findings.append(Finding("TM604", message, Place(row=at, token=0), Severity.WARNING, data={"count": count}))
    if keys.split:
        message = f"{len(keys.split)} rollouts lie in this step with only some of their rows: their lengths are too short"
        step.findings.append(Finding("TM605", message, Place(id=keys.split[0]), Severity.WARNING))
