"""What a loss term is: a pure function from log-probs to per-token loss and closed-form derivative. Sums nothing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from tracemask.core.errors import LossError, UsageError
from tracemask.loss.numerics import EXPONENT_CAP, segment_sum


class Level(Enum):
    """What a term's derivative at one token depends on."""

    TOKEN = "token"  # that token alone: one pass over the vocabulary is enough
    SEQUENCE = "sequence"  # the whole rollout: log-probs are computed first, in a pass of their own


@dataclass(frozen=True)
class TermInputs:
    """What a term may read, per target [N] beside lp[N]. Where `keep` is False every value is a harmless constant.

    advantage, old (the proximal policy's log-prob), sampler, ref: float [N] or None.
    entropy: nats over the full distribution [N] or None.
    sequence: int64 [N], the rollout of each target, in [0, sequences). cap: the exponent cap, nats.
    """

    keep: Tensor
    sequence: Tensor
    sequences: int
    advantage: Tensor | None = None
    old: Tensor | None = None
    sampler: Tensor | None = None
    ref: Tensor | None = None
    entropy: Tensor | None = None
    cap: float = EXPONENT_CAP

    def need(self, name: str) -> Tensor:
        """The array `name`. Raises LossError TM603 where the batch has none."""
        value = getattr(self, name)
        if value is None:
            raise LossError("TM603", what=f"the term needs {_WORDS[name]} and the batch has none", fix=_FIXES[name])
        return value

    def sequence_mean(self, x: Tensor) -> Tensor:
        """Mean of x over the kept targets of each rollout, given back to every target [N]."""
        total = segment_sum(torch.where(self.keep, x, 0), self.sequence, self.sequences)
        count = segment_sum(self.keep.to(x.dtype), self.sequence, self.sequences)
        return (total / count.clamp(min=1))[self.sequence].to(x.dtype)

    def sequence_sum(self, x: Tensor) -> Tensor:
        """Σ of x over the kept targets of each rollout, given back to every target [N]."""
        return segment_sum(torch.where(self.keep, x, 0), self.sequence, self.sequences)[self.sequence].to(x.dtype)

    def without_old(self, lp: Tensor) -> TermInputs:
        """The same inputs with the current policy as the proximal one (ratio 1, gradient kept)."""
        return replace(self, old=lp.detach())


_WORDS = {
    "advantage": "advantages",
    "old": "old (or sampler) log-probs",
    "sampler": "sampler log-probs",
    "ref": "reference log-probs",
    "entropy": "the entropy of the full distribution",
}
_FIXES = {
    "advantage": "pass advantages, or rewards with group",
    "old": "pass old= or sampler=; strictly on policy pass old=logprobs.detach()",
    "sampler": "record them when sampling, or pass sampler=",
    "ref": "run `tracemask score --as ref`, or pass ref=",
    "entropy": "pass entropy= (−mean log-prob has no entropy gradient), or use from_hidden",
}


@dataclass(frozen=True)
class TermResult:
    """Per target [N]: the term (to be minimised), d term / d lp, d term / d entropy (or None), and what to count.

    stats: bool [N] arrays become shares, float [N] arrays become means; only kept targets count.
    """

    loss: Tensor
    slope: Tensor
    entropy_slope: Tensor | None = None
    stats: Mapping[str, Tensor] = field(default_factory=dict)


TermFunction = Callable[..., TermResult]


@dataclass(frozen=True)
class Term:
    """A term function with what it needs. Calling it is calling the function: (lp[N], TermInputs, **options)."""

    function: TermFunction
    level: Level = Level.TOKEN
    needs: tuple[str, ...] = ()

    def __call__(self, lp: Tensor, given: TermInputs, **options: Any) -> TermResult:
        return self.function(lp, given, **options)

    @property
    def options(self) -> dict[str, Any]:
        """The keyword options and their defaults."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    def check_options(self, options: Mapping[str, Any], *, where: str) -> None:
        """Raises UsageError TM900 for an option that the term does not have."""
        parameters = inspect.signature(self.function).parameters.values()
        unknown = sorted(set(options) - set(self.options))
        if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
            raise UsageError(
                "TM900",
                where=where,
                what=f"unknown option {', '.join(map(repr, unknown))}",
                fix=f"known: {', '.join(self.options) or 'none'}",
            )


def term(*, level: Level = Level.TOKEN, needs: tuple[str, ...] = ()) -> Callable[[TermFunction], Term]:
    """Decorator that makes a term of a function; a plain function is a token-level term that needs nothing named."""

    def wrap(function: TermFunction) -> Term:
        return Term(function, level, needs)

    return wrap
