"""What a loss call gives back. Knows numbers and their names, nothing of how they came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from torch import Tensor

from tracemask.core.finding import Finding


class ComponentValue(NamedTuple):
    """sum: Σ weight·term. denominator: the one number it is divided by, or, where it differs from token to token, its
    weighted harmonic mean. value: Σ weight·term/denominator, without coef; micro-batches and ranks add up.
    """

    sum: float
    denominator: float
    value: float


@dataclass(frozen=True)
class LossOutput:
    """total: 0-d tensor, Σ coef·value, the only part with a gradient. It is a surrogate: it does not track learning.

    logprobs: [N] (from_hidden) or the input's shape (from_logprobs), detached. entropy: likewise, or None.
    metrics: name → (sum, count), names depend on the recipe alone, so that ranks and micro-batches add up.
    maxima: name → largest value. findings: TM601 where a whole step selects nothing.
    """

    total: Tensor
    components: Mapping[str, ComponentValue]
    logprobs: Tensor
    entropy: Tensor | None = None
    metrics: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    maxima: Mapping[str, float] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
