"""What a run would do, without weights: rows, trees, tokens saved, steps, denominators, memory. Knows no model code."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from tracemask.train.build import must_have_reference
from tracemask.train.config import TrainConfig
from tracemask.train.feed import steps_of
from tracemask.train.loader import Loaded, Loader
from tracemask.train.memory import BAND, GIB, estimate
from tracemask.train.update import must_have_old


@dataclass(frozen=True, slots=True)
class Plan:
    """Counts over an epoch, or a shorter run; denominators of the first step; an estimate of memory in bytes."""

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
    findings: list[str] = field(default_factory=list)

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
            ("micro-batches", f"{self.micro_batches} in {min(self.steps, self.steps_per_epoch)} steps"),
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
        return lines + [("finding", text) for text in self.findings]


def plan_run(config: TrainConfig, loader: Loader, *, vocab: int | None = None) -> Plan:
    """The plan of `config`; vocab: ids that the model has, where they are known. Lays every step of an epoch that the
    run takes, so what the data lack for it is refused here as the run would refuse it; reads no model."""
    counts: Counter[str] = Counter()
    first: dict[str, Any] = {}
    said: dict[str, None] = {}
    for index in range(min(steps_of(config, loader), loader.steps_per_epoch)):
        loaded = loader.step(index)
        if vocab is not None:
            loaded.must_be_known(vocab)
        must_have_reference(loaded.works, config, loader)
        must_have_old(loaded.works, config, loader)
        counts.update({name: int(loaded.facts[name]) for name in ("trees", "tokens", "slots")})
        counts["micro_batches"] += len(loaded.works)
        first = first or _selected(loaded)
        said.update(dict.fromkeys(f"{each.code} {each.message}" for each in loaded.findings))
    return Plan(
        recipe=loader.recipe.name,
        rows=len(loader.dataset),
        rollouts=loader.advantages.n_rollouts,
        groups=loader.advantages.n_groups,
        **{name: counts[name] for name in ("trees", "tokens", "slots", "micro_batches")},
        steps=steps_of(config, loader),
        steps_per_epoch=loader.steps_per_epoch,
        first_step=first,
        memory=estimate(config),
        findings=list(said),
    )


def _selected(loaded: Loaded) -> dict[str, Any]:
    """Selected tokens and the range of denominators of a step, per component."""
    out: dict[str, Any] = {}
    for name, count in loaded.counts.items():
        below = [float(row.denominator[name][0]) for row in loaded.step.rows if row.weights[name].any()]
        out[name] = {"selected": count, "denominator": [min(below), max(below)] if below else [0.0, 0.0]}
    return out
