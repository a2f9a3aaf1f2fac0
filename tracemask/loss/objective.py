"""A recipe's components over fixed targets: log-probs in, loss, derivatives and metrics out. Knows no vocabulary.

L = Σ_c coef_c · Σ_t w_c[t]·term_c[t] / Z_c[t]. The division by the step's denominators happens here and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tracemask.core.errors import LossError
from tracemask.core.limits import LOGPROB_CEILING
from tracemask.loss.batch import Targets
from tracemask.loss.components import Component, restrict
from tracemask.loss.metrics import Tally, tally_component, tally_distance
from tracemask.loss.output import ComponentValue
from tracemask.loss.terms import Level, TermInputs, TermResult


@dataclass(frozen=True)
class Part:
    """One component evaluated on targets [N]: what it kept, w, Z, their quotient (0 where not kept) and its term."""

    component: Component
    keep: Tensor
    weight: Tensor
    denominator: Tensor  # Z, float64; 1 where not kept
    share: Tensor  # w / Z, float64
    result: TermResult


class Objective:
    """The recipe's components over fixed targets, as the head sees them: log-probs in, derivatives out."""

    def __init__(
        self,
        components: tuple[Component, ...],
        targets: Targets,
        *,
        counts: Mapping[str, float] | None = None,
        entropy: bool = False,
        explain: Callable[[int], str] = lambda target: "",
    ) -> None:
        """explain: what a message should add about a target that is refused."""
        self.explain = explain
        self.components, self.targets, self.counts = components, targets, dict(counts or {})
        self.needs_every_logprob = any(c.level is Level.SEQUENCE for c in components)
        self.trains_entropy = any(c.trains_entropy for c in components)
        self.wants_entropy = entropy or self.trains_entropy
        self.idle = torch.ones(len(targets), dtype=torch.bool, device=targets.row.device)
        self._ready: tuple[Tensor, Tensor | None] | None = None
        for component in components:
            if component.after_rejection and component.name not in self.counts:
                raise LossError(
                    "TM950",
                    what=f"component {component.name!r} counts tokens after rejection; the step's count is missing",
                    fix="counts=loss.counts_after_rejection(…), summed over the step's micro-batches and ranks",
                )
            if component.name not in targets.weights:
                raise LossError(
                    "TM950",
                    what=f"no weights for component {component.name!r}",
                    fix=f"weigh its tokens; the batch has {', '.join(targets.weights) or 'no weights'}",
                )
            self.idle = self.idle & (targets.weights[component.name] == 0)

    def parts(self, lp: Tensor, entropy: Tensor | None, lo: int = 0, hi: int | None = None) -> list[Part]:
        """Every component on targets lo..hi; lp [hi − lo]."""
        hi = len(self.targets) if hi is None else hi
        return [self._part(c, lp, entropy, lo, hi) for c in self.components]

    def _part(self, component: Component, lp: Tensor, entropy: Tensor | None, lo: int, hi: int) -> Part:
        t = self.targets
        weight = t.weights[component.name][lo:hi].double()
        keep = weight != 0
        if component.name in self.counts:
            below = torch.full_like(weight, float(self.counts[component.name]) or 1.0)  # 0: all rejected, 0 / 1
        else:
            below = t.denominator[component.name][lo:hi].double()
        below = torch.where(keep, below, 1)
        given = restrict(self._inputs(component.cap, lp, entropy, lo, hi), keep)
        result = component(torch.where(keep, lp, 0), given, separate_old=t.old_logprob is not None)
        return Part(component, keep, weight, below, torch.where(keep, weight / below, 0), result)

    def _inputs(self, cap: float, lp: Tensor, entropy: Tensor | None, lo: int, hi: int) -> TermInputs:
        t = self.targets

        def cut(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[lo:hi].to(lp.dtype)

        return TermInputs(
            keep=torch.ones_like(lp, dtype=torch.bool),
            sequence=t.rollout[lo:hi],
            sequences=t.rollouts,
            advantage=cut(t.advantages),
            old=cut(t.sampler_logprob if t.old_logprob is None else t.old_logprob),
            sampler=cut(t.sampler_logprob),
            ref=cut(t.ref_logprob),
            entropy=entropy,
            cap=cap,
        )

    def prepare(self, lp: Tensor, entropy: Tensor | None) -> None:
        """Derivatives of all targets at once, for objectives in which targets depend on each other."""
        if self.needs_every_logprob:
            self._ready = _slopes(self.parts(lp, entropy), lp)

    def slopes(self, lo: int, hi: int, lp: Tensor, entropy: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """d total / d lp and d total / d entropy (or None) of targets lo..hi."""
        if self._ready is not None:
            slope, bend = self._ready
            return slope[lo:hi], None if bend is None else bend[lo:hi]
        return _slopes(self.parts(lp, entropy, lo, hi), lp)

    def value(self, lp: Tensor, entropy: Tensor | None) -> Tensor:
        """Σ coef·w·term/Z, 0-d, summed in float64."""
        total = torch.zeros((), dtype=torch.float64, device=lp.device)
        for part in self.parts(lp, entropy):
            total = total + part.component.coef * _dot(part.share, part)
        return total

    def kept_counts(self, lp: Tensor, entropy: Tensor | None) -> dict[str, int]:
        """component → targets with weight that no importance or trust-region mask rejects."""
        out = {}
        for part in self.parts(lp, entropy):
            kept = part.keep
            for name in ("rejected", "masked"):
                if name in part.result.stats:
                    kept = kept & ~part.result.stats[name]
            out[part.component.name] = int(kept.sum())
        return out

    def report(self, lp: Tensor, entropy: Tensor | None) -> tuple[dict[str, ComponentValue], Tally]:
        """Component values and metrics, after refusing what is not finite on kept targets."""
        parts = self.parts(lp, entropy)
        self._refuse(lp, parts)
        tally, raw = Tally(), []
        for part in parts:
            sign = self.targets.advantages
            sign = None if sign is None else torch.where(part.keep, sign, 0)
            tally_component(tally, part.component.name, part.result, part.keep, sign, self.targets.tokens)
            raw += [_dot(part.weight, part), _dot(part.share, part), *_denominator(part)]
        numbers = iter(torch.stack(raw).tolist())
        values = {}
        for part in parts:
            total, value, low, high, mean = (next(numbers) for _ in range(5))
            below = 0.0 if low > high else (low if low == high else mean)
            values[part.component.name] = ComponentValue(total, below, value)
        self._overall(tally, lp, entropy, parts)
        return values, tally

    def _overall(self, tally: Tally, lp: Tensor, entropy: Tensor | None, parts: list[Part]) -> None:
        t, kept = self.targets, torch.zeros_like(lp, dtype=torch.bool)
        judged = kept.clone()
        for part in parts:
            kept = kept | part.keep
            if {"advantage", "sampler"} & set(part.component.term.needs):
                judged = judged | part.keep
        clean = torch.where(kept, lp, 0)
        tally.add("logprob", clean, kept)
        tally.add("logprob_positive", clean > 0, kept)
        if entropy is not None:
            tally.add("entropy", torch.where(kept, entropy, 0), kept)
        for name, other in (("sampler", t.sampler_logprob), ("old", t.old_logprob), ("ref", t.ref_logprob)):
            if other is not None:
                tally_distance(tally, name, clean, other, judged if name != "ref" else kept)

    def _refuse(self, lp: Tensor, parts: list[Part]) -> None:
        """Raise for the first kept target with a value that no loss is defined for. One transfer when all is well."""
        bad = torch.zeros_like(lp, dtype=torch.bool)
        for part in parts:
            for values, word in self._looked_at(lp, part):
                bad = bad | (part.keep & _unusable(values, word))
            bad = bad | ~torch.isfinite(part.share)
        if not bool(bad.any()):
            return
        target = int(bad.nonzero()[0])
        for part in parts:
            if not bool(part.keep[target]) and bool(torch.isfinite(part.share[target])):
                continue
            for values, word in self._looked_at(lp, part):
                if bool(_unusable(values, word)[target]):
                    number = float(values[target])
                    said = f"{word} {number:.6g} is above 0" if math.isfinite(number) else f"{word} is {number}"
                    self._raise(target, said, part)
            if not bool(torch.isfinite(part.share[target])):
                self._raise(target, "weight or denominator is not usable", part)

    def _looked_at(self, lp: Tensor, part: Part) -> list[tuple[Tensor, str]]:
        """The arrays that a component reads, with the word for each."""
        t, needs = self.targets, set(part.component.needs)
        old = t.sampler_logprob if t.old_logprob is None else t.old_logprob
        arrays = {
            "advantage": (t.advantages, "advantage"),
            "old": (old, "old log-prob"),
            "sampler": (t.sampler_logprob, "sampler log-prob"),
            "ref": (t.ref_logprob, "reference log-prob"),
        }
        return [(lp, "log-prob"), (part.weight, "weight")] + [
            (values, word) for name, (values, word) in arrays.items() if name in needs and values is not None
        ]

    def _raise(self, target: int, what: str, part: Part) -> None:
        raise LossError(
            "TM404",
            where=self.targets.place(target),
            what=f"{what}{self.explain(target)} on a token that component {part.component.name!r} trains",
            fix="give the token weight 0 where that is meant, or find where the value came from",
        )


def _unusable(values: Tensor, word: str) -> Tensor:
    """bool[N]: not finite, or a log-prob above 0 by more than rounding."""
    bad = ~torch.isfinite(values)
    return bad | (values > LOGPROB_CEILING) if word.endswith("log-prob") else bad


def _dot(scale: Tensor, part: Part) -> Tensor:
    """Σ scale·term over kept targets in float64; a masked target's value is never multiplied."""
    return torch.where(part.keep, scale * part.result.loss.double(), 0).sum()


def _denominator(part: Part) -> tuple[Tensor, Tensor, Tensor]:
    """Smallest, largest and weighted harmonic mean denominator of kept targets; smallest > largest where none is."""
    if not len(part.keep):
        zero = part.share.sum()
        return zero, zero - 1, zero
    low = torch.where(part.keep, part.denominator, float("inf")).amin()
    high = torch.where(part.keep, part.denominator, float("-inf")).amax()
    return low, high, part.weight.sum() / part.share.sum()


def _slopes(parts: list[Part], lp: Tensor) -> tuple[Tensor, Tensor | None]:
    slope, bend = torch.zeros_like(lp), None
    for part in parts:
        scale = (part.component.coef * part.share).to(lp.dtype)
        slope = slope + torch.where(part.keep, scale * part.result.slope, 0)
        if part.result.entropy_slope is not None:
            extra = torch.where(part.keep, scale * part.result.entropy_slope, 0)
            bend = extra if bend is None else bend + extra
    return slope, bend
