"""Loss metrics as (sum, count) pairs, so that micro-batches and ranks add up. Knows no denominators' rules.

Names depend on the recipe alone, never on the data: an empty rank has the same names with (0, 0).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from tracemask.loss.kl import k3
from tracemask.loss.numerics import EXPONENT_CAP
from tracemask.loss.terms import TermResult

DRIFT_EDGES = (-0.5, -0.2, -0.1, -0.05, -0.01, 0.01, 0.05, 0.1, 0.2, 0.5)  # of p − q, current minus sampler


class Tally:
    """Collects pairs as tensors; one transfer at the end. Each pair is (Σ of values where kept, number kept)."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._values: list[Tensor] = []
        self._maxima: dict[str, Tensor] = {}

    def add(self, name: str, values: Tensor, keep: Tensor) -> None:
        """Σ values over keep, and |keep|. Both [N]; bool values become a share."""
        self.pair(name, torch.where(keep, values, 0).sum(dtype=torch.float64), keep.sum())

    def pair(self, name: str, total: Tensor | float, count: Tensor | float) -> None:
        """A pair that is already summed (0-d tensors or numbers)."""
        self._names.append(name)
        self._values += [torch.as_tensor(x, dtype=torch.float64) for x in (total, count)]

    def maximum(self, name: str, values: Tensor, keep: Tensor) -> None:
        """Largest kept value, or −inf."""
        kept = torch.where(keep, values.double(), float("-inf"))
        self._maxima[name] = kept.amax() if len(kept) else torch.tensor(float("-inf"))

    def result(self) -> tuple[dict[str, tuple[float, float]], dict[str, float]]:
        """(pairs, maxima) as numbers."""
        numbers = _numbers(self._values)
        pairs = {name: (numbers[2 * i], numbers[2 * i + 1]) for i, name in enumerate(self._names)}
        return pairs, dict(zip(self._maxima, _numbers(self._maxima.values())))


def _numbers(values: Iterable[Tensor]) -> list[float]:
    """One transfer from the device that the tensors live on (constants may sit on the CPU)."""
    tensors = list(values)
    if not tensors:
        return []
    device = next((x.device for x in tensors if x.device.type != "cpu"), tensors[0].device)
    return torch.stack([x.to(device) for x in tensors]).tolist()


def tally_component(
    tally: Tally, name: str, result: TermResult, keep: Tensor, sign: Tensor | None, tokens: int
) -> None:
    """Shares and means of one component. keep: bool [N]. sign: advantage [N]: shares by its sign. tokens: of all."""
    tally.add(f"{name}/loss", result.loss, keep)
    tally.pair(f"{name}/selected", keep.sum(), float(tokens))
    for stat, values in result.stats.items():
        tally.add(f"{name}/{stat}", values, keep)
        if values.dtype == torch.bool and sign is not None:
            tally.add(f"{name}/{stat}_positive", values, keep & (sign > 0))
            tally.add(f"{name}/{stat}_negative", values, keep & (sign < 0))
    if "ratio" in result.stats:
        ratio = result.stats["ratio"]
        tally.add(f"{name}/ratio_squared", ratio * ratio, keep)
        tally.maximum(f"{name}/ratio", ratio, keep)


def tally_distance(tally: Tally, name: str, lp: Tensor, other: Tensor, keep: Tensor) -> None:
    """k1, k2, k3 of the current policy against another [N] at the kept targets, and a histogram of p − q."""
    keep = keep & torch.isfinite(other)
    gap = torch.where(keep, lp - torch.where(keep, other, 0), 0)
    tally.add(f"{name}/k1", gap, keep)
    tally.add(f"{name}/k2", gap * gap / 2, keep)
    tally.add(f"{name}/k3", k3(gap, EXPONENT_CAP).value, keep)
    moved = torch.where(keep, torch.exp(lp) - torch.exp(torch.where(keep, other, 0)), 0)
    below = (moved[:, None] < torch.tensor(DRIFT_EDGES, dtype=moved.dtype, device=moved.device)) & keep[:, None]
    for edge, count in zip(DRIFT_EDGES, below.sum(0)):
        tally.pair(f"{name}/moved_below_{edge:g}", count, keep.sum())


def merged(parts: Iterable[Mapping[str, tuple[float, float]]]) -> dict[str, tuple[float, float]]:
    """Pairs of several micro-batches or ranks, added."""
    total: dict[str, tuple[float, float]] = {}
    for part in parts:
        for name, (value, count) in part.items():
            before = total.get(name, (0.0, 0.0))
            total[name] = (before[0] + value, before[1] + count)
    return total


def means(pairs: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """sum / count of each pair; NaN where nothing was counted. Adds `effective_sample`, mean(r)²/mean(r²) in (0, 1]."""
    out = {name: value / count if count else float("nan") for name, (value, count) in pairs.items()}
    for name in [n for n in out if n.endswith("/ratio_squared")]:
        component, square = name.rpartition("/")[0], out[name]
        out[f"{component}/effective_sample"] = out[f"{component}/ratio"] ** 2 / square if square else float("nan")
    return out
