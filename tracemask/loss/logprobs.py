"""The loss from log-probs that someone else computed: for people with their own trainer. Knows no hidden state.

Denominators are counted here from the masks, for the whole step, with `reduce` over ranks, with `counts` over parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tracemask.core.finding import Finding
from tracemask.loss.batch import Targets
from tracemask.loss.components import Component, components_of, resolve
from tracemask.loss.denominators import Reduce, advantages_of, counted, denominators
from tracemask.loss.layout import Layout, misfit
from tracemask.loss.objective import Objective
from tracemask.loss.output import LossOutput
from tracemask.loss.surrogate import Surrogate


def from_logprobs(
    recipe: Any,
    logprobs: Tensor,
    *,
    mask: Tensor | None = None,
    old: Tensor | None = None,
    sampler: Tensor | None = None,
    ref: Tensor | None = None,
    entropy: Tensor | None = None,
    advantages: Tensor | None = None,
    weights: Mapping[str, Tensor] | None = None,
    cu_seqlens: Tensor | None = None,
    rewards: Tensor | None = None,
    group: Tensor | None = None,
    observations: Tensor | None = None,
    reduce: Reduce | None = None,
    counts: Mapping[str, np.ndarray] | None = None,
) -> LossOutput:
    """The loss of one step, or with `counts` of a part of it.

    logprobs [T], rollouts end to end with cu_seqlens [n + 1], or [B, T] with mask [B, T].
    logprobs[t] is the log-prob of token t itself: shift before you call. mask, old, sampler, ref, entropy: its shape.
    weights: component → its shape; a component without an entry takes the mask, but `ce` beside other components must
    have its own. advantages: [n] per rollout, or per token; or rewards [n] with group [n], by the recipe's estimator.
    observations: its shape, all observation tokens, for recipes that count them (echo_paper). reduce: sums an int64
    array over ranks, where ranks hold parts of one step (whole groups each). counts: step_counts of the step's
    micro-batches, whose totals add up to the step's; advantages are then given, because estimators read the whole step.
    Returns LossOutput, logprobs in the input's shape. Raises LossError TM404, TM603, TM950.
    """
    recipe = resolve(recipe)
    components = components_of(recipe)
    if counts is not None:
        _is_a_part(components, rewards, reduce)
    layout = Layout(logprobs, mask, cu_seqlens, needed=weights is None)
    lengths = layout.lengths(masked=weights is None)
    given = _advantages(recipe, layout, advantages, rewards, group, lengths)
    streams = _streams(recipe, components, layout, weights, given, excluded=rewards is not None)
    seen = layout.flat(observations, "observations")
    counting = {"group": group, "observations": seen, "reduce": reduce, "counts": counts}
    targets = Targets(
        weights=streams,
        denominator=denominators(recipe, streams, layout.rollout, layout.rollouts, **counting),
        row=layout.rollout,
        index_in_row=layout.index,
        rollout=layout.rollout,
        rollouts=layout.rollouts,
        advantages=given,
        old_logprob=layout.flat(old, "old"),
        sampler_logprob=layout.flat(sampler, "sampler"),
        ref_logprob=layout.flat(ref, "ref"),
        tokens=logprobs.numel(),
    )
    return _output(components, targets, logprobs, entropy, layout, reduce)


def step_counts(
    recipe: Any, parts: Iterable[Mapping[str, Any]], *, reduce: Reduce | None = None
) -> dict[str, np.ndarray]:
    """component → int64 counts of a step that is cut into micro-batches, before the first forward pass.

    parts: of each micro-batch the arguments of from_logprobs that decide what is counted: mask or cu_seqlens, weights,
    advantages, group, observations. A rollout, and under prompt_mean a group, lies in one part. reduce: over ranks.
    """
    recipe = resolve(recipe)
    components = components_of(recipe)
    total: dict[str, np.ndarray] = {}
    seen: set[float] = set()
    for part in parts:
        layout, given = _part(recipe, **part)
        streams = _streams(recipe, components, layout, part.get("weights"), given, excluded=False)
        group = part.get("group")
        here = set() if group is None else set(torch.as_tensor(group).reshape(-1).tolist())
        if here & seen and any(entry.normalizer.name == "prompt_mean" for entry in recipe.components.values()):
            misfit(f"group {min(here & seen)} lies in two micro-batches: prompt_mean divides by it", "keep it whole")
        seen |= here
        own = counted(recipe, streams, layout.rollout, layout.rollouts, group=group,
                      observations=layout.flat(part.get("observations"), "observations"))  # fmt: skip
        total = {name: counts + total.get(name, 0) for name, counts in own.items()}
    return total if reduce is None else {name: reduce(counts) for name, counts in total.items()}


def _part(
    recipe: Any, *, mask: Tensor | None = None, cu_seqlens: Tensor | None = None, advantages: Tensor | None = None,
    weights: Mapping[str, Tensor] | None = None, group: Tensor | None = None, observations: Tensor | None = None,
) -> tuple[Layout, Tensor | None]:  # fmt: skip
    """The layout of one micro-batch without its log-probs, and its advantages per token."""
    shapes = [mask, observations, *(weights or {}).values()]
    like = next((torch.as_tensor(each) for each in shapes if each is not None), None)
    if like is None:
        if cu_seqlens is None:
            misfit("a micro-batch without mask, weights and cu_seqlens", "give what from_logprobs gets")
        like = torch.zeros(int(torch.as_tensor(cu_seqlens)[-1]))
    layout = Layout(like, mask, cu_seqlens, needed=weights is None)
    return layout, _advantages(recipe, layout, advantages, None, group)


def _is_a_part(components: tuple[Component, ...], rewards: Tensor | None, reduce: Reduce | None) -> None:
    """TM950 for what cannot be exact in a micro-batch whose step is known by its counts alone."""
    if rewards is not None:
        misfit("rewards with the step's counts", "pass advantages, of loss.advantages_of over the whole step")
    if reduce is not None:
        misfit("reduce with the step's counts", "give it to step_counts")
    late = [component.name for component in components if component.after_rejection]
    if late:
        misfit(f"component {late[0]!r} counts what its ratios keep", "use from_hidden with counts_after_rejection")


def _streams(
    recipe: Any, components: tuple[Component, ...], layout: Layout, weights: Mapping[str, Tensor] | None,
    given: Tensor | None, *, excluded: bool,
) -> dict[str, Tensor]:  # fmt: skip
    """component → weights [T] that are trained."""
    entries = zip(components, recipe.components.values(), strict=True)
    return {
        component.name: _without(
            component, entry, _stream(component, components, layout, weights), given, excluded=excluded
        )
        for component, entry in entries
    }


def _output(
    components: tuple[Component, ...],
    targets: Targets,
    logprobs: Tensor,
    entropy: Tensor | None,
    layout: Layout,
    reduce: Reduce | None,
) -> LossOutput:
    lp, full = logprobs.reshape(-1), layout.flat(entropy, "entropy")
    counts = {}
    if any(c.after_rejection for c in components):
        free = Objective(tuple(replace(c, after_rejection=False) for c in components), targets)
        with torch.no_grad():
            kept = free.kept_counts(_wide(lp), None if full is None else _wide(full))
        counts = {c.name: _summed(kept[c.name], reduce) for c in components if c.after_rejection}
    objective = Objective(components, targets, counts=counts, entropy=entropy is not None)
    with torch.no_grad():
        values, tally = objective.report(_wide(lp), None if full is None else _wide(full))
    total = Surrogate.apply(lp, full, objective)
    metrics, maxima = tally.result()
    nothing = all(not bool((w != 0).any()) for w in targets.weights.values())
    findings = (Finding("TM601", "no token of the step has weight in any component: the loss is 0"),) if nothing else ()
    shown = None if entropy is None else entropy.detach()
    return LossOutput(total, values, logprobs.detach(), shown, metrics, maxima, findings)


def _summed(count: int, reduce: Reduce | None) -> int:
    counts = np.array([count], np.int64)
    return max(1, int((counts if reduce is None else reduce(counts))[0]))


def _wide(x: Tensor) -> Tensor:
    x = x.detach()
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _stream(
    component: Component, components: tuple[Component, ...], layout: Layout, weights: Mapping[str, Tensor] | None
) -> Tensor:
    if weights is not None and component.name in weights:
        stream = layout.flat(weights[component.name], f"weights[{component.name!r}]")
        assert stream is not None
        return stream.to(torch.float64)
    own = component.needs or len(components) == 1
    if not own or (layout.mask is None and weights is not None):
        fix = f"pass weights={{{component.name!r}: …}}: which tokens it trains is not the policy's mask"
        misfit(f"no weights for component {component.name!r}", fix)
    if layout.mask is None:
        return torch.ones(layout.rollout.shape, dtype=torch.float64, device=layout.device)
    if layout.mask.is_floating_point() and not bool(torch.isfinite(layout.mask).all()):
        misfit("the mask is not finite", "give 0 and 1, or booleans")
    return layout.mask.to(torch.float64)


def _without(component: Component, entry: Any, stream: Tensor, advantage: Tensor | None, *, excluded: bool) -> Tensor:
    """The stream without zero-advantage tokens where the recipe drops them and without rollouts that lack a reward."""
    if advantage is None:
        return stream
    if getattr(entry, "zero_advantage", "keep") == "drop":
        stream = torch.where(advantage != 0, stream, 0)
    if excluded and "advantage" in component.needs:
        stream = torch.where(torch.isnan(advantage), 0, stream)
    return stream


def _advantages(
    recipe: Any,
    layout: Layout,
    advantages: Tensor | None,
    rewards: Tensor | None,
    group: Tensor | None,
    lengths: Tensor | None = None,
) -> Tensor | None:
    if advantages is not None:
        if rewards is not None:
            misfit("both advantages and rewards", "pass one of them")
        return layout.per_token(advantages, "advantages")
    if rewards is None:
        return None
    values = torch.as_tensor(advantages_of(recipe, rewards, group, lengths=lengths), device=layout.device)
    return layout.per_token(values, "rewards")
