"""Loss and gradient of one micro-batch: evaluates components, divides each by its own denominator, drives the LM head.

L = Σ_c coef_c · Σ_t w_c[t]·term_c[t] / Z_c[t]. Denominators are the step's, counted before the forward pass, so that
the gradient is the same for any split into micro-batches and ranks. The engine alone divides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tracemask.core.errors import LossError
from tracemask.core.registry import Table
from tracemask.loss.batch import Batch, Targets
from tracemask.loss.components import Component, components_of, restrict
from tracemask.loss.metrics import Tally, tally_component, tally_distance
from tracemask.loss.numerics import POSITIVE_TOLERANCE
from tracemask.loss.output import ComponentValue, LossOutput
from tracemask.loss.terms import Level, TermInputs, TermResult

ROW_KERNELS: Table[Any] = Table(
    "LM head",
    chunked="tracemask.loss.lm_head.torch_rows:KERNELS",
    triton="tracemask.loss.lm_head.triton_kernels:KERNELS",
)


@dataclass(frozen=True)
class Part:
    """One component evaluated on targets [N]: what it kept, its scale coef·w/Z (0 where not kept) and its term."""

    component: Component
    keep: Tensor
    weight: Tensor
    share: Tensor  # w / Z
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
    ) -> None:
        self.components, self.targets, self.counts = components, targets, dict(counts or {})
        self.needs_every_logprob = any(c.level is Level.SEQUENCE for c in components)
        self.trains_entropy = any(c.trains_entropy for c in components)
        self.wants_entropy = entropy or self.trains_entropy
        self._ready: tuple[Tensor, Tensor | None] | None = None
        for component in components:
            if component.name not in targets.weights:
                raise LossError(
                    "TM950",
                    what=f"no weights for component {component.name!r}",
                    fix=f"weigh its tokens; the batch has {', '.join(targets.weights) or 'no weights'}",
                )

    def parts(self, lp: Tensor, entropy: Tensor | None, lo: int = 0, hi: int | None = None) -> list[Part]:
        """Every component on targets lo..hi; lp [hi − lo]."""
        hi = len(self.targets) if hi is None else hi
        return [self._part(c, lp, entropy, lo, hi) for c in self.components]

    def _part(self, component: Component, lp: Tensor, entropy: Tensor | None, lo: int, hi: int) -> Part:
        t = self.targets
        weight = t.weights[component.name][lo:hi].to(lp.dtype)
        keep = weight != 0
        if component.name in self.counts:
            below = torch.full_like(weight, float(self.counts[component.name]))
        else:
            below = t.denominator[component.name][lo:hi].to(lp.dtype)
        share = torch.where(keep, weight / torch.where(keep, below, 1), 0)
        given = restrict(self._inputs(component.cap, lp, entropy, lo, hi), keep)
        result = component(torch.where(keep, lp, 0), given, separate_old=t.old_logprob is not None)
        return Part(component, keep, weight, share, result)

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

    def report(self, lp: Tensor, entropy: Tensor | None) -> tuple[dict[str, ComponentValue], Tally]:
        """Component values and metrics, after refusing what is not finite on kept targets."""
        parts = self.parts(lp, entropy)
        self._refuse(lp, parts)
        tally, raw = Tally(), []
        for part in parts:
            sign = self.targets.advantages
            sign = None if sign is None else torch.where(part.keep, sign, 0)
            tally_component(tally, part.component.name, part.result, part.keep, sign, self.targets.tokens)
            raw += [
                _dot(part.weight, part),
                _dot(part.share, part),
                part.weight.double().sum(),
                part.share.double().sum(),
            ]
        numbers = iter(torch.stack(raw).tolist())
        values = {}
        for part in parts:
            total, value, weight, share = (next(numbers) for _ in range(4))
            values[part.component.name] = ComponentValue(total, weight / share if share else 0.0, value)
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
            for values, _ in self._looked_at(lp, part):
                bad = bad | (part.keep & ~torch.isfinite(values))
            bad = bad | (part.keep & (lp > POSITIVE_TOLERANCE)) | ~torch.isfinite(part.share)
        if not bool(bad.any()):
            return
        target = int(bad.nonzero()[0])
        for part in parts:
            if not bool(part.keep[target]) and bool(torch.isfinite(part.share[target])):
                continue
            for values, word in self._looked_at(lp, part):
                if not bool(torch.isfinite(values[target])):
                    self._raise(target, f"{word} is {float(values[target])}", part)
            if float(lp[target]) > POSITIVE_TOLERANCE:
                self._raise(target, f"log-prob {float(lp[target]):.6g} is above 0", part)
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
            what=f"{what} on a token that component {part.component.name!r} trains",
            fix="give the token weight 0 where that is meant, or find where the value came from",
        )


def _dot(scale: Tensor, part: Part) -> Tensor:
    """Σ scale·term over kept targets in float64; a masked target's value is never multiplied."""
    return torch.where(part.keep, scale.double() * part.result.loss.double(), 0).sum()


def _slopes(parts: list[Part], lp: Tensor) -> tuple[Tensor, Tensor | None]:
    slope, bend = torch.zeros_like(lp), None
    for part in parts:
        scale = part.component.coef * part.share
        slope = slope + torch.where(part.keep, scale * part.result.slope, 0)
        if part.result.entropy_slope is not None:
            extra = torch.where(part.keep, scale * part.result.entropy_slope, 0)
            bend = extra if bend is None else bend + extra
    return slope, bend


def from_hidden(
    recipe: Any,
    hidden_SH: Tensor,
    head_weight_VH: Tensor,
    batch: Batch,
    *,
    bias: Tensor | None = None,
    counts: Mapping[str, float] | None = None,
    chunk: int | str = "auto",
    head: str = "auto",
    softcap: float | None = None,
    logit_scale: float = 1.0,
    valid_vocab: int | None = None,
    entropy: bool = False,
) -> LossOutput:
    """The loss of one micro-batch from hidden states, through the fused LM head.

    recipe: a Recipe, its name, or an object with `components`. hidden_SH: [S, H] or [1, S, H], after the final norm.
    head_weight_VH: [V, H], same dtype; a plain tensor, or a DTensor (gathered here, its gradient summed over ranks).
    counts: component → one denominator for all its tokens, in place of the batch's (for after_rejection).
    chunk: logit rows at a time. head: "chunked" (torch), "triton", "auto" (triton on CUDA, else chunked).
    softcap, logit_scale, valid_vocab: as the model's head has them. entropy: report it as a metric too.
    Returns LossOutput; total is this micro-batch's share of the step's loss: add micro-batches up, never average.
    Raises LossError TM404 (not finite on a kept token, by name), TM603 (missing arrays), TM950 (shapes, dtypes).
    """
    from tracemask.loss.lm_head.chunked import FusedHead, Head
    from tracemask.loss.lm_head.spec import Logits

    hidden, weight = _aligned(hidden_SH, head_weight_VH, batch)
    rows = batch.vocabulary_rows()
    order = rows.order
    targets, target_id = (batch, batch.target_id) if order is None else (batch.take(order), batch.target_id[order])
    objective = Objective(components_of(recipe), targets, counts=counts, entropy=entropy)
    name = ("triton" if hidden.is_cuda else "chunked") if head == "auto" else head
    logits = Logits(logit_scale, softcap, valid_vocab)
    if name == "reference":
        total, lp, full = _by_autograd(hidden, weight, bias, rows, target_id, logits, objective)
    else:
        fixed = Head(rows, target_id, logits, ROW_KERNELS[name], chunk)
        total, lp, full = FusedHead.apply(hidden, weight, bias, fixed, objective, torch.is_grad_enabled())
    with torch.no_grad():
        values, tally = objective.report(lp, full if objective.wants_entropy else None)
    metrics, maxima = tally.result()
    given_back = [_restored(x, order) if len(x) == len(lp) else x for x in (lp, full)]
    entropies = given_back[1] if objective.wants_entropy else None
    return LossOutput(total, values, given_back[0], entropies, metrics, maxima)


def _by_autograd(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, rows: Any, target: Tensor, logits: Any, objective: Objective
) -> tuple[Tensor, Tensor, Tensor]:
    from tracemask.loss.lm_head.reference import row_logprobs
    from tracemask.loss.surrogate import Surrogate

    lp, full = row_logprobs(hidden, weight, bias, rows, target, logits)
    return Surrogate.apply(lp, full, objective), lp.detach(), full.detach()


def _restored(values: Tensor, order: Tensor | None) -> Tensor:
    """Row order back to the batch's own order."""
    return values if order is None else torch.empty_like(values).index_copy_(0, order, values)


def _aligned(hidden: Tensor, weight: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    hidden = hidden[0] if hidden.dim() == 3 and hidden.shape[0] == 1 else hidden
    weight = _whole(weight)
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise LossError(
            "TM950",
            what=f"hidden {tuple(hidden.shape)} and head {tuple(weight.shape)} do not fit",
            fix="give [S, H] and [V, H]",
        )
    if hidden.shape[0] != batch.input_ids.shape[0]:
        raise LossError(
            "TM950", what=f"{hidden.shape[0]} hidden states for {batch.input_ids.shape[0]} slots", fix="one per slot"
        )
    if hidden.dtype != weight.dtype:
        raise LossError(
            "TM950",
            what=f"hidden is {hidden.dtype}, the head {weight.dtype}",
            fix="cast one, e.g. weight.to(hidden.dtype)",
        )
    return hidden, weight


def _whole(weight: Tensor) -> Tensor:
    """A DTensor's full weight, whose gradient goes back as the sum over ranks; a plain tensor as it is."""
    if type(weight) is Tensor or not hasattr(weight, "full_tensor"):
        return weight
    from torch.distributed.tensor import DTensor, Partial

    assert isinstance(weight, DTensor)
    return weight.full_tensor(grad_placements=[Partial()] * weight.device_mesh.ndim)
