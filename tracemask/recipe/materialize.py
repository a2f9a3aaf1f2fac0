"""Weights, denominators and advantages of a recipe written into shards, for another trainer. Knows no file layout."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tracemask.core.finding import Finding, Severity
from tracemask.recipe.advantage import Advantages, compute, for_steps
from tracemask.recipe.counting import StepCounts
from tracemask.recipe.laying import Laying
from tracemask.recipe.model import Recipe
from tracemask.recipe.normalize import Tally, denominator
from tracemask.recipe.rollouts import members_of
from tracemask.recipe.select import TokenBytes
from tracemask.store.row import Row

if TYPE_CHECKING:
    from tracemask.store.reader import Dataset


@dataclass(slots=True)
class Materialized:
    """What was written: steps, selected tokens per component, tokens taken out, findings (TM601, TM603, TM605)."""

    out: str
    recipe: str
    rows: int
    steps: int
    counts: dict[str, int]
    dropped: dict[str, int]
    findings: list[Finding] = field(default_factory=list)

    def lines(self) -> list[str]:
        """For people."""
        counted = ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        out = [f"{self.recipe}: {self.rows:,} rows, {self.steps:,} steps; tokens in the loss: {counted} -> {self.out}"]
        out += [
            f"  {count:,} tokens left {key.replace('.', ': ').replace('_', ' ')}" for key, count in self.dropped.items()
        ]
        return out + [f"  {finding.code} {finding.message}" for finding in self.findings]

    def to_json(self) -> dict[str, Any]:
        """For machines."""
        fields = ("out", "recipe", "rows", "steps", "counts", "dropped")
        return {name: getattr(self, name) for name in fields} | {"findings": [f.to_json() for f in self.findings]}


def materialize(
    dataset: Dataset,
    recipe: Recipe | str,
    out: str,
    *,
    groups_per_step: int | None = None,
    policy_version: int | None = None,
    token_bytes: TokenBytes | None = None,
    force: bool = False,
) -> Materialized:
    """Writes the dataset at `out` with weight.<component> float32, denominator.<component> float64 and advantage.

    A step is `groups_per_step` whole groups in order of appearance; default: the whole dataset. Where a token has no
    advantage the column holds 0 and its weight is 0. Written by the commit protocol: killed and run again, the bytes
    are the same. Errors as `compute`, `lay_step` and the store, whose TM501 for another tool's dataset comes first.
    """
    from tracemask.store.derive import add_columns, must_be_shards

    must_be_shards(dataset)
    recipe = Recipe.load(recipe)
    advantages = compute(recipe, dataset.scalars(), rows=len(dataset))
    plan = _Plan(recipe, dataset, advantages, groups_per_step, policy_version, token_bytes)
    plan.count()
    config = {"materialize": {"groups_per_step": groups_per_step, "policy_version": policy_version}}
    add_columns(dataset, out, plan.columns, config=config, recipe=recipe.model_dump(mode="json"), force=force)
    return Materialized(
        out, recipe.name, len(dataset), len(plan.tallies), dict(plan.selected), dict(plan.dropped), plan.findings()
    )


class _Plan:
    """Two passes over the rows: integer counts of every step, then the columns of each row."""

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        advantages: Advantages,
        groups_per_step: int | None,
        policy_version: int | None,
        token_bytes: TokenBytes | None,
    ) -> None:
        self.recipe, self.dataset = recipe, dataset
        every = max(advantages.n_groups, 1)
        self.groups_per_step = min(groups_per_step or every, every)
        self.tallies: dict[int, dict[str, Tally]] = {}
        self.selected: Counter[str] = Counter(dict.fromkeys(recipe.components, 0))
        self.dropped: Counter[str] = Counter()
        self.empty_steps = 0
        scalars = dict(dataset.scalars()) if recipe.advantage.over_batch else {}
        steps = members_of(advantages.group // self.groups_per_step)
        self.advantages = for_steps(recipe, scalars, advantages, steps)
        self.laying = Laying(recipe, dataset, self.advantages, policy_version=policy_version, token_bytes=token_bytes)

    def count(self) -> None:
        """First pass."""
        counts: dict[int, StepCounts] = {}
        for row in self.dataset:
            key, laid = self.laying.key(row), self.laying.laid(row)
            step = counts.setdefault(key.group // self.groups_per_step, StepCounts(self.recipe))
            step.add(row, laid.weights, key.rollout, key.group)
            self.dropped.update(laid.dropped)
        for number, step in sorted(counts.items()):
            _, selected, self.tallies[number] = step.reduced()
            self.selected.update(selected)
            self.empty_steps += not any(selected.values())

    def columns(self, row: Row) -> dict[str, np.ndarray]:
        """Second pass: what add_columns writes for one row."""
        key, values = self.laying.key(row), self.laying.values(row)
        weights = self.laying.laid(row, values).weights
        out: dict[str, np.ndarray] = {"advantage": np.where(np.isnan(values), 0.0, values).astype(np.float32)}
        for name, component in self.recipe.components.items():
            spec, tally = component.normalizer, self.tallies[key.group // self.groups_per_step][name]
            z = denominator(spec, tally, rollout=key.rollout, group=key.group)
            out[f"weight.{name}"] = weights[name]
            out[f"denominator.{name}"] = np.full(len(row), float(z))
        return out

    def findings(self) -> list[Finding]:
        out = list(self.advantages.findings)
        if self.empty_steps:
            message = f"{self.empty_steps} of {len(self.tallies)} steps have no token in the loss"
            out.append(Finding("TM601", message, severity=Severity.ERROR))
        for key, count in self.dropped.items():
            if key.endswith(".first_token"):
                message = f"{count} rows begin with a trained token of component {key.split('.')[0]}: weight 0"
                out.append(Finding("TM604", message, severity=Severity.WARNING))
        return out
