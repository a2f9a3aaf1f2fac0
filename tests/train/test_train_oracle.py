"""Every preset, from rows to gradients, against its paper's formula: one row at a time, by autograd.

Of ours the expected side (oracle_formulas.py) has nothing but the tiny model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from oracle_formulas import PRESETS, VARIANTS, Formula
from oracle_rows import see, wild_rows
from torch import Tensor
from train_models import tiny

from tracemask.recipe import Recipe
from tracemask.store.row import Row
from tracemask.train.distributed import World
from tracemask.train.loader import Loader, Policy
from tracemask.train.metrics import add
from tracemask.train.model import use_attention
from tracemask.train.sources import MemoryRows
from tracemask.train.step import PolicyStep
from tracemask.train.update import accumulate


def gradients(step: Any, value: Tensor) -> list[Tensor]:
    return [g.clone() for g in torch.autograd.grad(value, list(step.parameters()))]


class Ranks:
    """A world of several ranks in one process: integer counts of every rank are known to each."""

    def __init__(self, size: int) -> None:
        self.size, self.parts = size, {}

    def world(self, rank: int) -> World:
        ranks = self

        class Shared(World):
            def add_int(self, counts: np.ndarray) -> np.ndarray:
                ranks.parts[rank] = counts
                return sum(ranks.parts.values())

            def largest(self, number: int) -> int:
                return number

            def add_pairs(self, pairs: Any) -> Any:
                return pairs

        return Shared(rank=rank, size=self.size)


def laid(rows: list[Row], recipe: Recipe, policy: Policy, ranks: int) -> Iterator[Any]:
    """The works of every rank."""
    shared = Ranks(ranks)
    for final in (False, True):
        for rank in range(ranks):
            loader = Loader(MemoryRows(rows), recipe, policy, world=shared.world(rank), dtype=torch.float64)
            loaded = loader.step(0)
            if final:
                yield loaded.works


WAYS = (
    (Policy(tokens_per_batch=4096, packing="tree"), 1),
    (Policy(tokens_per_batch=64, packing="rows"), 1),
    (Policy(tokens_per_batch=64, packing="tree", seed=3), 2),
    (Policy(tokens_per_batch=100, packing="auto", seed=7), 4),
)


def test_every_preset_has_a_formula_here() -> None:
    from tracemask.recipe.load import preset_names

    assert set(PRESETS) == set(preset_names())


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("seed", "old", "spread"), [(0, False, 0.1), (1, True, 0.3), (2, True, 2.0)])
def test_a_preset_trains_by_its_paper_s_formula(name: str, seed: int, old: bool, spread: float) -> None:
    compare(Recipe.load(name), PRESETS[name], seed, old, spread)


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize(("seed", "old", "spread"), [(3, False, 0.1), (4, True, 1.0)])
def test_an_option_trains_by_its_formula(name: str, seed: int, old: bool, spread: float) -> None:
    compare(Recipe.load(VARIANTS[name][0]), VARIANTS[name][1], seed, old, spread)


def compare(recipe: Recipe, formula: Formula, seed: int, old: bool, spread: float) -> None:
    """Loss, gradients and metrics of every way to lay the rows out, against the formula over each row alone."""
    rows = wild_rows(seed, old=old, spread=spread)
    model: Any = tiny("qwen3", seed=seed, tied=seed == 1)
    step = PolicyStep(model, recipe)
    model.set_attn_implementation("sdpa")
    expected = formula(see(model, rows))
    slopes = gradients(step, expected)
    scale = max(float(one.abs().max()) for one in slopes)
    assert scale > 0
    use_attention(model, "segments")
    metrics = []
    for policy, ranks in WAYS:
        step.zero_grad()
        pairs: dict[str, tuple[float, float]] = {}
        for works in laid(rows, recipe, policy, ranks):
            add(pairs, accumulate(step, works, World()))
        value = sum(recipe.components[c].coef * pairs[f"loss/{c}"][0] for c in recipe.components)
        assert value == pytest.approx(float(expected.detach()), rel=1e-11, abs=1e-12)
        for parameter, slope in zip(step.parameters(), slopes, strict=True):
            assert parameter.grad is not None
            assert float((parameter.grad - slope).abs().max()) <= 1e-12 * max(1.0, scale)
        metrics.append(pairs)
    for other in metrics[1:]:
        assert other.keys() == metrics[0].keys()
        for key, (one, count) in metrics[0].items():
            assert other[key][0] == pytest.approx(one, rel=1e-9, abs=1e-9), key
            assert other[key][1] == count or key.endswith("/max"), key
