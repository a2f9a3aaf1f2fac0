"""Ten classic bugs, each put back in by hand: the acceptance check that catches it must fail on the bug.

`acceptable` is the one check: loss and gradient of a step with skewed rollouts, observations and two micro-batches are
those of a reference written without the engine. Every mutant wraps or replaces one small piece.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from loss_recipes import recipe, rl
from loss_world import Rollout, batch, lay, rollouts, run, weight
from torch import Tensor

from tracemask import loss
from tracemask.core.errors import RecipeError
from tracemask.recipe import Recipe

CHOSEN = recipe(rl=rl(), ce=rl("ce", coef=0.1))
Result = tuple[float, Tensor]


def reference() -> Result:
    """In plain torch: −A·lp over all policy tokens, −0.1·lp over all observations, each over its own count."""
    w, step = weight(), rollouts()
    total = torch.zeros((), dtype=torch.float64)
    counts = {c: sum(int(r.masks[c].sum()) for r in step) for c in ("rl", "ce")}
    for one in step:
        for t in range(1, len(one.ids)):
            lp = torch.log_softmax(one.hidden[t - 1] @ w.t(), -1)[int(one.ids[t])]
            if one.masks["rl"][t]:
                total = total - one.advantage * lp / counts["rl"]
            if one.masks["ce"][t]:
                total = total - 0.1 * lp / counts["ce"]
    (moved,) = torch.autograd.grad(total, w)
    return total.item(), moved


REFERENCE = reference()


def acceptable(result: Result) -> bool:
    value, moved = result
    return abs(value - REFERENCE[0]) < 1e-10 and bool((moved - REFERENCE[1]).abs().max() < 1e-10)


def micros(step: list[Rollout]) -> list[list[Rollout]]:
    return [step[:1], step[1:]]


def ours(chosen: Recipe = CHOSEN) -> Result:
    step = rollouts()
    lay(chosen, step)
    return run(chosen, micros(step), weight())[:2]


def test_the_engine_is_acceptable() -> None:
    assert acceptable(ours())


def per_micro_batch_mean() -> Result:
    """Denominators counted in each micro-batch, the means averaged (gradient accumulation as it used to be)."""
    value, moved = 0.0, torch.zeros_like(REFERENCE[1])
    for micro in micros(rollouts()):
        lay(CHOSEN, micro)
        part = run(CHOSEN, [micro], weight())
        value, moved = value + part[0] / 2, moved + part[1] / 2
    return value, moved


def padding_in_the_denominator() -> Result:
    step = rollouts()
    lay(CHOSEN, step)
    width = max(len(r.ids) for r in step)
    for one in step:
        one.denominator = {c: np.full(len(one.ids), float(width * len(step))) for c in one.masks}
    return run(CHOSEN, micros(step), weight())[:2]


def unmasked_numerator() -> Result:
    """The right denominators, every token in the sum."""
    step = rollouts()
    lay(CHOSEN, step)
    for one in step:
        one.masks = {c: np.arange(len(one.ids)) > 0 for c in one.masks}
    return run(CHOSEN, micros(step), weight())[:2]


def shared_denominator() -> Result:
    step = rollouts()
    lay(CHOSEN, step)
    for one in step:
        total = one.denominator["rl"] + one.denominator["ce"]
        one.denominator = dict.fromkeys(one.masks, total)
    return run(CHOSEN, micros(step), weight())[:2]


def shifted_by_one() -> Result:
    """The hidden state at the token itself, which has seen it."""
    step, w = rollouts(), weight()
    lay(CHOSEN, step)
    out = loss.from_hidden(CHOSEN, *(lambda h, b: (h, w, b))(*batch(step, shift=0)))
    out.total.backward()
    assert w.grad is not None
    return out.total.item(), w.grad


def averaged_ranks() -> Result:
    """Two ranks with global denominators whose gradients are averaged, as DDP does, and not undone."""
    value, moved = ours()
    return value / 2, moved / 2


def per_rank_denominators() -> Result:
    """Each rank divides by its own count; balanced data would hide it."""
    value, moved = 0.0, torch.zeros_like(REFERENCE[1])
    for rank in (rollouts()[:4], rollouts()[4:]):
        lay(CHOSEN, rank)
        part = run(CHOSEN, [rank], weight())
        value, moved = value + part[0] / 2, moved + part[1] / 2
    return value, moved


def dropped_stop() -> Result:
    """The stop token, sampled last, left out of the mask."""
    step = rollouts()
    for one in step:
        one.masks["rl"][-1] = False
    lay(CHOSEN, step)
    return run(CHOSEN, micros(step), weight())[:2]


def bf16_accumulation() -> Result:
    """Micro-batch gradients added up in bfloat16."""
    step, value = rollouts(), 0.0
    lay(CHOSEN, step)
    moved = torch.zeros_like(REFERENCE[1]).bfloat16()
    for one in step:
        part = run(CHOSEN, [[one]], weight())
        value, moved = value + part[0], moved + part[1].bfloat16()
    return value, moved.double()


MUTANTS = [
    per_micro_batch_mean,
    padding_in_the_denominator,
    unmasked_numerator,
    shared_denominator,
    shifted_by_one,
    averaged_ranks,
    per_rank_denominators,
    dropped_stop,
    bf16_accumulation,
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.__name__)
def test_each_classic_bug_fails_the_check(mutant: Callable[[], Result]) -> None:
    assert not acceptable(mutant())


def poison_free(masked_loss: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]) -> bool:
    """Whether NaN, −inf and a log-ratio of 200 in masked slots leave the gradient finite and equal to the clean one."""
    mask = torch.tensor([0, 0, 0, 1, 1])
    old = torch.tensor([-200.0, -1.0, -1.0, -0.5, -1.0])
    found = []
    for values in ([0.0, -float("inf"), float("nan"), -0.5, -1.0], [-1.0, -1.0, -1.0, -0.5, -1.0]):
        lp = torch.tensor(values, requires_grad=True)
        found.append(torch.autograd.grad(masked_loss(lp, old, mask, torch.tensor(2.0)), lp)[0])
    return bool(torch.equal(found[0], found[1]))


def test_masking_by_multiplication_after_exp_lets_poison_through() -> None:
    def by_multiplication(lp: Tensor, old: Tensor, mask: Tensor, advantage: Tensor) -> Tensor:
        ratio = (lp - old).exp()
        return -(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage) * mask).sum() / mask.sum()

    def as_we_do(lp: Tensor, old: Tensor, mask: Tensor, advantage: Tensor) -> Tensor:
        return loss.from_logprobs(recipe(rl=rl("ppo")), lp, old=old, mask=mask, advantages=advantage[None]).total

    assert poison_free(as_we_do)
    assert not poison_free(by_multiplication)


def test_k1_in_the_loss_is_refused_and_would_move_nothing_in_expectation() -> None:
    with pytest.raises(RecipeError, match="TM951"):
        recipe(kl=rl("kl", estimator="k1"))
    theta = torch.randn(9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pulls = {}
    for estimator in ("k1", "k3"):
        live = theta.clone().requires_grad_()
        lp = torch.log_softmax(live, 0)
        chosen = recipe(kl=rl("kl", "sum", estimator=estimator, compat=True))
        ref = torch.full_like(lp, -np.log(9)).detach()
        out = loss.from_logprobs(chosen, lp, ref=ref, weights={"kl": lp.detach().exp()})
        pulls[estimator] = float(torch.autograd.grad(out.total, live)[0].norm())
    assert pulls["k1"] < 1e-14  # the check "a penalty pulls" fails on the bug
    assert pulls["k3"] > 0.1


def test_equal_ranks_hide_the_per_rank_bug_and_skewed_ones_show_it() -> None:
    even = rollouts(0, (20,) * 8)
    for one in even:
        one.masks = {c: (np.arange(20) % 2 == (c == "ce")) & (np.arange(20) > 1) for c in one.masks}

    def split(step: list[Rollout]) -> Result:
        value, moved = 0.0, torch.zeros_like(REFERENCE[1])
        for rank in (step[:4], step[4:]):
            lay(CHOSEN, rank)
            part = run(CHOSEN, [rank], weight())
            value, moved = value + part[0] / 2, moved + part[1] / 2
        return value, moved

    lay(CHOSEN, even)
    together = run(CHOSEN, [even], weight())
    assert torch.allclose(split(even)[1], together[1], atol=1e-12)
    assert not acceptable(per_rank_denominators())
