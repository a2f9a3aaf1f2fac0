"""The step's loss and gradient do not depend on how rollouts are ordered, packed, padded or cut into micro-batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_recipes import recipe, rl
from loss_world import batch, lay, rollouts, run, weight

from tracemask import loss
from tracemask.loss.metrics import merged
from tracemask.recipe import Recipe

NORMALIZERS: list[Any] = ["token_mean", "sequence_mean", {"name": "constant", "length": 128}, "sum_per_rollout", "sum"]


def of(normalizer: Any, term: str = "ppo") -> Recipe:
    return recipe(rl=rl(term, normalizer), ce=rl("ce", normalizer, coef=0.1))


def whole(chosen: Recipe) -> tuple[float, torch.Tensor, dict[str, tuple[float, float]]]:
    step = rollouts()
    lay(chosen, step)
    value, moved, outputs = run(chosen, [step], weight())
    return value, moved, dict(outputs[0].metrics)


@pytest.mark.parametrize("term", ["ppo", "gspo"])
@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
@settings(max_examples=2, derandomize=True, deadline=None)
@given(order=st.permutations(range(8)), cuts=st.sets(st.integers(1, 7), max_size=4))
def test_order_packing_and_micro_batches_change_nothing(
    normalizer: Any, term: str, order: list[int], cuts: set[int]
) -> None:
    chosen = of(normalizer, term)
    value, moved, metrics = whole(chosen)
    step = rollouts()
    lay(chosen, step)
    bounds = [0, *sorted(cuts), 8]
    micros = [[step[i] for i in order[a:b]] for a, b in zip(bounds, bounds[1:])]
    split, gradient, outputs = run(chosen, micros, weight(), chunk=23)
    assert split == pytest.approx(value, rel=1e-12, abs=1e-12)
    assert torch.allclose(gradient, moved, rtol=0, atol=1e-12)
    for name, pair in merged(out.metrics for out in outputs).items():
        assert pair == pytest.approx(metrics[name], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
def test_padding_and_packing_of_given_log_probs_agree_with_the_head(normalizer: Any) -> None:
    chosen, step = of(normalizer), rollouts()
    lay(chosen, step)
    hidden, packed = batch(step)
    value, _, _ = run(chosen, [step], weight())
    logits = torch.log_softmax(hidden @ weight().detach().t(), -1)
    lengths = [len(r.ids) for r in step]
    for pad in (0, 13):
        width = max(lengths) + pad
        lp = torch.full((8, width), float("nan"), dtype=torch.float64)
        old = torch.full_like(lp, float("nan"))
        masks = {c: torch.zeros(8, width) for c in ("rl", "ce")}
        start = 0
        for i, one in enumerate(step):
            ids = torch.from_numpy(one.ids)
            lp[i, 1 : lengths[i]] = logits[torch.arange(start, start + lengths[i] - 1), ids[1:]]
            old[i, : lengths[i]] = torch.from_numpy(one.old)
            for c, mask in masks.items():
                mask[i, : lengths[i]] = torch.from_numpy(one.masks[c])
            start += lengths[i]
        advantages = torch.tensor([r.advantage for r in step], dtype=torch.float64)
        out = loss.from_logprobs(chosen, lp, old=old, advantages=advantages, weights=masks)
        assert out.total.item() == pytest.approx(value, rel=1e-11)
    assert packed.tokens == sum(lengths)


def test_a_rollout_in_several_rows_is_one_sequence() -> None:
    """Two rows of one trace: gspo's ratio runs over both."""
    from loss_recipes import random_batch

    hidden = torch.randn(40, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    w = torch.randn(50, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) / 4
    chosen = recipe(rl=rl("gspo", eps_low=0.9, eps_high=100.0))
    ones = {"selected": 1.0, "advantages": [1.0] * 25}
    merged_rows = random_batch(0, rollout=[7] * 10 + [3] * 15, **ones)
    out = loss.from_hidden(chosen, hidden, w, merged_rows)
    gap = out.logprobs - merged_rows.old_logprob
    expected = torch.cat([gap[:10].mean().exp().repeat(10), gap[10:].mean().exp().repeat(15)])
    mean = out.metrics["rl/ratio"][0] / out.metrics["rl/ratio"][1]
    assert mean == pytest.approx(float(expected.mean()), rel=1e-10)


def test_a_rollout_that_starts_on_a_sampled_token_shifts_nobody() -> None:
    """Packed rows whose second token is the first target: each reads its own row's first hidden state."""
    from loss_world import Rollout

    step = rollouts(3, (4, 4, 4))
    for one in step:
        one.masks["rl"][:] = [False, True, False, False]
        one.masks["ce"][:] = False
    chosen = recipe(rl=rl("reinforce", "sum"), ce=rl("ce"))
    lay(chosen, step)
    _, made = batch(step)
    assert made.parent_slot.tolist() == [0, 4, 8]
    packed, _, _ = run(chosen, [step], weight())
    alone: list[list[Rollout]] = [[one] for one in step]
    assert run(chosen, alone, weight())[0] == pytest.approx(packed, rel=1e-12)
