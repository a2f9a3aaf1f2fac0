"""What a run would do, without weights: rows, trees, tokens saved, steps, denominators, memory. Knows no model code."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from tracemask.train.config import TrainConfig
from tracemask.train.feed import steps_of
from tracemask.train.loader import Loader
from tracemask.train.memory import BAND, GIB, estimate
from tracemask.train.plan import fill


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts over one epoch, denominators of the first step, and an estimate of memory in bytes."""

    recipe: str
    rows: int
    rollouts: int
    groups: int
    trees: int
    tokens: int
    slots: int
    micro_batches: int
    steps: int
    steps_per_epoch: int
    first_step: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        """(name, text) for people."""
        saved = 1 - self.slots / self.tokens if self.tokens else 0.0
        lines = [
            ("recipe", self.recipe),
            ("data", f"{self.rows} rows of {self.rollouts} rollouts in {self.groups} groups"),
            (
                "layout",
                f"{self.trees} trees, {self.tokens:,} tokens in {self.slots:,} slots ({saved:.0%} shared)",
            ),
            ("micro-batches", f"{self.micro_batches} an epoch"),
            ("steps", f"{self.steps} ({self.steps_per_epoch} an epoch)"),
        ]
        for name, one in self.first_step.items():
            low, high = one["denominator"]
            spelled = f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
            lines.append((f"step 1 {name}", f"{one['selected']:,} tokens, denominator {spelled}"))
        if self.memory:
            parts = ", ".join(f"{name} {size / GIB:.2f}" for name, size in self.memory.items())
            total, (low, high) = sum(self.memory.values()) / GIB, BAND
            lines.append(("memory estimate", f"{total:.2f} GiB ({parts}); peaks measured: {low:g} to {high:g} × this"))
        return lines


def plan_run(config: TrainConfig, loader: Loader) -> Plan:
    """The plan of `config`. Reads token ids, never weights."""
    trees = tokens = slots = batches = 0
    for index in range(loader.steps_per_epoch):
        step = [tree for group in loader.plan(index) for tree in group]
        trees += len(step)
        tokens += sum(tree.tokens for tree in step)
        slots += sum(tree.slots for tree in step)
        batches += len(fill(step, budget=config.tokens_per_batch))
    return Plan(
        recipe=loader.recipe.name,
        rows=len(loader.dataset),
        rollouts=loader.advantages.n_rollouts,
        groups=loader.advantages.n_groups,
        trees=trees,
        tokens=tokens,
        slots=slots,
        micro_batches=batches,
        steps=steps_of(config, loader),
        steps_per_epoch=loader.steps_per_epoch,
        first_step=_first(loader),
        memory=estimate(config),
    )


def _first(loader: Loader) -> dict[str, Any]:
    """Selected tokens and the range of denominators of step 1, per component."""
    laid = loader.step(0).step
    out: dict[str, Any] = {}
    for name in loader.recipe.components:
        below = [float(row.denominator[name][0]) for row in laid.rows if row.weights[name].any()]
        out[name] = {"selected": laid.counts[name], "denominator": [min(below), max(below)] if below else [0.0, 0.0]}
    return out
