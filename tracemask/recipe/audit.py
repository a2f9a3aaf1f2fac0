"""The length-bias audit: what every normalizer gives each rollout of a dataset. Knows numbers, no words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tracemask.recipe.advantage import Advantages
from tracemask.recipe.component import Component, Normalizer
from tracemask.recipe.counting import StepCounts
from tracemask.recipe.keys import dataset_key, stream
from tracemask.recipe.model import Recipe
from tracemask.recipe.normalize import NORMALIZERS, Tally
from tracemask.recipe.select import TokenBytes
from tracemask.recipe.weights import lay_row
from tracemask.store.row import Row


@dataclass(slots=True)
class ComponentAudit:
    """One component over R rollouts in order of appearance, the whole dataset taken as one step.

    tokens int64[R]: tokens with weight ≠ 0. mean_weight float64[R]: their mean weight times the coefficient.
    per_token[normalizer] float64[R]: weight / denominator of a token; per_rollout: its sum over the rollout.
    in_force: the recipe's own normalizer.
    """

    name: str
    in_force: str
    uses_advantage: bool
    labels: list[str]
    tokens: np.ndarray
    mean_weight: np.ndarray
    advantage: np.ndarray
    per_token: dict[str, np.ndarray] = field(default_factory=dict)
    l_max: int = 0

    def per_rollout(self, normalizer: str) -> np.ndarray:
        """float64[R]: the weight of a whole rollout, before its advantage."""
        return self.per_token[normalizer] * self.tokens

    def push(self, normalizer: str) -> np.ndarray:
        """float64[R]: |advantage| times the rollout's weight; the weight alone where the term has no advantage."""
        scale = np.abs(np.nan_to_num(self.advantage)) if self.uses_advantage else 1.0
        return np.abs(self.per_rollout(normalizer)) * scale

    @property
    def kept(self) -> np.ndarray:
        """Indices of rollouts with at least one counted token, shortest first, in order of appearance where equal."""
        at = np.flatnonzero(self.tokens)
        return at[np.argsort(self.tokens[at], kind="stable")]

    def token_ratio(self, normalizer: str) -> float:
        """Weight of a token of the shortest rollout over one of the longest; nan with nothing to compare."""
        kept = self.kept
        if not len(kept) or self.per_token[normalizer][kept[-1]] == 0:
            return math.nan
        return float(self.per_token[normalizer][kept[0]] / self.per_token[normalizer][kept[-1]])

    def rollout_ratio(self, normalizer: str) -> float:
        """Weight of the longest rollout over the shortest's; nan with nothing to compare."""
        kept, total = self.kept, self.per_rollout(normalizer)
        return float(total[kept[-1]] / total[kept[0]]) if len(kept) and total[kept[0]] else math.nan

    @property
    def correlation(self) -> float:
        """Pearson correlation of length with advantage over the counted rollouts; nan where either is constant."""
        kept = self.kept
        lengths, advantages = self.tokens[kept].astype(np.float64), self.advantage[kept]
        known = np.isfinite(advantages)
        lengths, advantages = lengths[known], advantages[known]
        if len(lengths) < 2 or np.ptp(lengths) == 0 or np.ptp(advantages) == 0:
            return math.nan
        return float(np.corrcoef(lengths, advantages)[0, 1])


@dataclass(slots=True)
class Audit:
    """What a recipe does to a dataset: components, rollouts scheduled, tokens taken out by "component.reason"."""

    recipe: Recipe
    n_rollouts: int
    n_rows: int
    components: dict[str, ComponentAudit]
    dropped: dict[str, int]


def audit(
    recipe: Recipe, rows: Iterable[Row], advantages: Advantages, *, token_bytes: TokenBytes | None = None
) -> Audit:
    """One pass over the rows, only counts kept. Rows without log-probs or sampled ids are audited all the same."""
    lenient = recipe.model_copy(update={"missing_logprob": "keep", "allow_messages": True})
    counts = StepCounts(lenient, n_groups=advantages.n_groups)
    sums = {name: np.zeros(advantages.n_rollouts) for name in recipe.components}
    tokens = {name: np.zeros(advantages.n_rollouts, dtype=np.int64) for name in recipe.components}
    values = np.full(advantages.n_rollouts, np.nan)
    labels: dict[int, str] = {}
    groups: dict[int, int] = {}
    dropped: dict[str, int] = {}
    n_rows = 0
    for row in rows:
        n_rows += 1
        key = dataset_key(row, advantages)
        laid = lay_row(lenient, row, stream(lenient, row, key), token_bytes=token_bytes, reason=key.reason)
        counts.add(row, laid.weights, key.rollout, key.group)
        labels.setdefault(key.rollout, str(row.scalars.get("trace_id") or row.scalars.get("id") or f"row {row.index}"))
        groups[key.rollout] = key.group
        values[key.rollout] = key.advantage
        for name, weights in laid.weights.items():
            tokens[name][key.rollout] += np.count_nonzero(weights)
            sums[name][key.rollout] += weights.sum(dtype=np.float64)
        for reason, count in laid.dropped.items():
            dropped[reason] = dropped.get(reason, 0) + count
    n, _, tallies = counts.reduced()
    order = list(labels)
    components = {
        name: _component(name, component, tallies[name], order, labels, groups, tokens[name], sums[name], values)
        for name, component in recipe.components.items()
    }
    return Audit(recipe, n, n_rows, components, dropped)


def _component(
    name: str,
    component: Component,
    tally: Tally,
    order: list[int],
    labels: dict[int, str],
    groups: dict[int, int],
    tokens: np.ndarray,
    sums: np.ndarray,
    values: np.ndarray,
) -> ComponentAudit:
    count = tokens[order]
    weight = component.coef * np.divide(sums[order], count, out=np.zeros(len(order)), where=count > 0)
    l_max = component.normalizer.length or int(count.max(initial=1))
    out = ComponentAudit(
        name,
        component.normalizer.effective,
        component.spec.uses_advantage,
        [labels[rollout] for rollout in order],
        count,
        weight,
        values[order],
        l_max=l_max,
    )
    for normalizer, denominator in NORMALIZERS.items():
        spec = component.normalizer
        if normalizer != spec.effective:
            spec = Normalizer(name=normalizer, length=l_max if normalizer == "constant" else None)  # pyright: ignore[reportArgumentType]
        z = np.array([denominator(tally, spec, rollout, groups[rollout]) for rollout in order], dtype=np.float64)
        out.per_token[normalizer] = np.divide(weight, z, out=np.zeros(len(order)), where=(z > 0) & (count > 0))
    return out
