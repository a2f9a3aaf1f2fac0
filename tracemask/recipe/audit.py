"""The length-bias audit: what every normalizer gives each rollout of a dataset. Knows numbers, no words."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tracemask.recipe.advantage import Advantages
from tracemask.recipe.component import Component, Normalizer
from tracemask.recipe.counting import StepCounts
from tracemask.recipe.keys import RowKey, dataset_key, name_of, stream
from tracemask.recipe.model import PER_TOKEN, Recipe
from tracemask.recipe.normalize import NORMALIZERS, Tally
from tracemask.recipe.select import TokenBytes
from tracemask.recipe.weights import lay_row, reencoded
from tracemask.store.row import Row


@dataclass(slots=True)
class ComponentAudit:
    """One component over R rollouts in order of appearance, the whole dataset taken as one step.

    tokens int64[R]: tokens with weight ≠ 0. mean_weight float64[R]: their mean weight times the coefficient.
    per_token[normalizer] float64[R]: weight / denominator of a token; per_rollout: its sum over the rollout.
    in_force: the recipe's own normalizer. advantage float64[R]: where it differs by token, its mean over trained ones.
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
    """What a recipe does to a dataset: components, rollouts scheduled, tokens taken out by "component.reason".

    refused: rows of re-encoded text that a policy term weighs: training refuses them (TM940).
    """

    recipe: Recipe
    n_rollouts: int
    n_rows: int
    components: dict[str, ComponentAudit]
    dropped: dict[str, int]
    refused: int = 0


def audit(
    recipe: Recipe, rows: Iterable[Row], advantages: Advantages, *, token_bytes: TokenBytes | None = None
) -> Audit:
    """One pass over the rows, only counts kept. Rows without log-probs or sampled ids are audited all the same."""
    lenient = recipe.model_copy(update={"missing_logprob": "keep", "allow_messages": True})
    counts = StepCounts(lenient, n_groups=advantages.n_groups)
    found = _Rollouts(recipe, advantages.n_rollouts)
    sampled = [name for name, component in recipe.components.items() if component.on_policy]
    dropped: Counter[str] = Counter()
    n_rows = refused = 0
    for row in rows:
        key = dataset_key(row, advantages)
        values = stream(lenient, row, key)
        laid = lay_row(lenient, row, values, token_bytes=token_bytes, reason=key.reason)
        counts.add(row, laid.weights, key.rollout, key.group)
        found.add(row, key, laid.weights, values)
        dropped.update(laid.dropped)
        refused += not recipe.allow_messages and reencoded(row) and any(laid.weights[name].any() for name in sampled)
        n_rows += 1
    n, _, tallies = counts.reduced()
    if recipe.advantage.estimator in PER_TOKEN:
        found.average()
    components = {
        name: _component(name, component, tallies[name], found) for name, component in recipe.components.items()
    }
    return Audit(recipe, n, n_rows, components, dict(dropped), refused)


class _Rollouts:
    """What the pass keeps of each rollout: label, group, advantage, and per component tokens and sum of weights."""

    def __init__(self, recipe: Recipe, n: int) -> None:
        self.weighed = [name for name, component in recipe.components.items() if component.spec.uses_advantage]
        self.labels: dict[int, str] = {}  # in order of appearance
        self.groups: dict[int, int] = {}
        self.advantage = np.full(n, np.nan)
        self.tokens = {name: np.zeros(n, dtype=np.int64) for name in recipe.components}
        self.sums = {name: np.zeros(n) for name in recipe.components}
        self.advantage_sum, self.advantage_count = np.zeros(n), np.zeros(n)

    def add(self, row: Row, key: RowKey, weights: dict[str, np.ndarray], values: np.ndarray) -> None:
        self.labels.setdefault(key.rollout, name_of(row))
        self.groups[key.rollout] = key.group
        self.advantage[key.rollout] = key.advantage
        for name, stream_T in weights.items():
            self.tokens[name][key.rollout] += np.count_nonzero(stream_T)
            self.sums[name][key.rollout] += stream_T.sum(dtype=np.float64)
        for name in self.weighed:
            self.advantage_sum[key.rollout] += values[weights[name] != 0].sum()
            self.advantage_count[key.rollout] += np.count_nonzero(weights[name])

    def average(self) -> None:
        """Advantages per token become their mean over the rollout's trained tokens."""
        self.advantage = np.divide(
            self.advantage_sum,
            self.advantage_count,
            out=np.full(len(self.advantage), np.nan),
            where=self.advantage_count > 0,
        )


def _component(name: str, component: Component, tally: Tally, found: _Rollouts) -> ComponentAudit:
    order = list(found.labels)
    tokens, sums, own = found.tokens[name][order], found.sums[name][order], component.normalizer
    weight = component.coef * np.divide(sums, tokens, out=np.zeros(len(order)), where=tokens > 0)
    l_max = own.length or int(tokens.max(initial=1))
    out = ComponentAudit(
        name=name,
        in_force=own.effective,
        uses_advantage=component.spec.uses_advantage,
        labels=list(found.labels.values()),
        tokens=tokens,
        mean_weight=weight,
        advantage=found.advantage[order],
        l_max=l_max,
    )
    for normalizer, denominator in NORMALIZERS.items():
        spec = own if normalizer == own.effective else _plain(normalizer, l_max)
        z = np.array([denominator(tally, spec, key, found.groups[key]) for key in order], dtype=np.float64)
        out.per_token[normalizer] = np.divide(weight, z, out=np.zeros(len(order)), where=(z > 0) & (tokens > 0))
    return out


def _plain(normalizer: str, l_max: int) -> Normalizer:
    """A normalizer the recipe does not name, with its defaults."""
    return Normalizer.model_validate({"name": normalizer} | ({"length": l_max} if normalizer == "constant" else {}))
