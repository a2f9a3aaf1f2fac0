"""Sampler-mismatch weights: truncate, or zero out, the ratio of the proximal policy to the sampler. No gradient flows.

A rejected token keeps its place in the denominator; only the numerator loses it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tracemask.core.registry import Table
from tracemask.loss.numerics import capped_exp, segment_max
from tracemask.loss.terms import TermInputs


@dataclass(frozen=True)
class MismatchWeight:
    """Per target [N]: the factor on the term, where it is 0 by rejection, and where the ratio was truncated."""

    weight: Tensor
    rejected: Tensor
    truncated: Tensor


def _token(gap: Tensor, given: TermInputs) -> tuple[Tensor, Tensor]:
    return gap, gap


def _sum(gap: Tensor, given: TermInputs) -> tuple[Tensor, Tensor]:
    total = given.sequence_sum(gap)
    return total, total


def _mean(gap: Tensor, given: TermInputs) -> tuple[Tensor, Tensor]:
    mean = given.sequence_mean(gap)
    return mean, mean


def _max(gap: Tensor, given: TermInputs) -> tuple[Tensor, Tensor]:
    """The rollout's lowest and highest token gap: one wild token decides for all."""
    kept = torch.where(given.keep, gap, float("-inf"))
    highest = segment_max(kept, given.sequence, given.sequences)
    lowest = -segment_max(torch.where(given.keep, -gap, float("-inf")), given.sequence, given.sequences)
    low, high = (torch.where(torch.isinf(x), 0, x)[given.sequence] for x in (lowest, highest))
    return low, high


LEVELS = Table("mismatch level", token=_token, sum=_sum, mean=_mean, max=_max)


def _truncated(ratio: Tensor, lowest: Tensor, highest: Tensor, low: float | None, high: float) -> MismatchWeight:
    """min(ρ̄, high)."""
    return MismatchWeight(ratio.clamp(max=high), torch.zeros_like(ratio, dtype=torch.bool), ratio > high)


def _rejected(ratio: Tensor, lowest: Tensor, highest: Tensor, low: float | None, high: float) -> MismatchWeight:
    """ρ̄ where its extremes lie inside [low, high], 0 elsewhere."""
    out = highest > high if low is None else (lowest < low) | (highest > high)
    return MismatchWeight(torch.where(out, 0, ratio), out, torch.zeros_like(out))


KINDS = Table("mismatch kind", tis=_truncated, mis=_rejected, icepop=_rejected)


def mismatch_weight(
    given: TermInputs, *, kind: str, level: str = "token", low: float | None = None, high: float = 2.0
) -> MismatchWeight:
    """The factor for each target [N]: ρ̄ = e^{o−μ}; o is given.old (the caller puts the current log-prob there when they
    are one).

    kind "tis": min(ρ̄, high). "mis", "icepop": ρ̄ inside [low, high], 0 outside; low None: 0.
    level: "token"; "sum", "mean" or "max" over the rollout's kept targets. Raises UsageError TM902 for other words.
    """
    weigh = KINDS[kind]
    gap = given.need("old") - given.need("sampler")
    lowest, highest = LEVELS[level](gap, given)
    ratio = capped_exp(gap if level == "max" else lowest, given.cap).value
    return weigh(ratio, capped_exp(lowest, given.cap).value, capped_exp(highest, given.cap).value, low, high)
