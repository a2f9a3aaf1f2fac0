"""What a run would do, without weights: rows, trees, tokens saved, steps, denominators, memory. Knows no model code."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tracemask.train.config import TrainConfig
from tracemask.train.loader import Loader

GIB = 1 << 30
_SHAPE = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")


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
            lines.append(("memory estimate", f"{sum(self.memory.values()) / GIB:.2f} GiB ({parts})"))
        return lines


def plan_run(config: TrainConfig, loader: Loader) -> Plan:
    """The plan of `config`. Reads token ids, never weights."""
    from tracemask.train.plan import fill
    from tracemask.train.trainer import steps_of

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
        memory=_memory(config),
    )


def _first(loader: Loader) -> dict[str, Any]:
    """Selected tokens and the range of denominators of step 1, per component."""
    laid = loader.step(0).step
    out: dict[str, Any] = {}
    for name in loader.recipe.components:
        below = [float(row.denominator[name][0]) for row in laid.rows if row.weights[name].any()]
        out[name] = {"selected": laid.counts[name], "denominator": [min(below), max(below)] if below else [0.0, 0.0]}
    return out


def _memory(config: TrainConfig) -> dict[str, int]:
    """Weights, gradients, AdamW's moments, activations of one micro-batch and the head's buffers; an estimate."""
    shape = _shape(config.model)
    if shape is None:
        return {}
    width, layers, inner, vocab = (shape[name] for name in _SHAPE)
    size = 8 if config.dtype == "float64" else 4
    half = 2 if config.dtype == "bfloat16" else size
    head = vocab * width
    parameters = layers * (4 * width * width + 3 * width * inner) + head * (1 if shape["tied"] else 2)
    slots = config.tokens_per_batch
    per_layer = slots * (2 * width + 8 * width + 3 * inner) * half
    kept = slots * width * half * layers + per_layer if config.gradient_checkpointing else per_layer * layers
    return {
        "weights": parameters * size,
        "gradients": parameters * size,
        "optimizer": 2 * parameters * size,
        "activations": kept,
        "head": head * size + (48 << 20),
    }


def _shape(model: str | None) -> dict[str, int] | None:
    path = Path(model or "") / "config.json"
    if model is None or not path.is_file():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    values = values.get("text_config", values)
    if any(name not in values for name in _SHAPE):
        return None
    return {name: int(values[name]) for name in _SHAPE} | {"tied": int(bool(values.get("tie_word_embeddings", True)))}
