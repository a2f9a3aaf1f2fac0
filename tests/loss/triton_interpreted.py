"""Run by test_loss_triton.py in a process of its own with TRITON_INTERPRET=1, so that no other test sees the switch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from loss_recipes import random_batch, recipe, rl

from tracemask import loss
from tracemask.core.errors import LossError

ALL = recipe(
    rl=rl("ppo", eps_high=0.28), ce=rl("ce", coef=0.1), kl=rl("kl", coef=0.2), entropy=rl("entropy", coef=0.05)
)
SEQUENCE = recipe(rl=rl("gspo", eps_low=0.2, eps_high=0.2))
PLAIN = recipe(rl=rl("ppo"))
NAMES = ("rl", "ce", "kl", "entropy")
CASES: dict[str, dict[str, Any]] = {
    "small": {},
    "one block and a bit": {"vocab": 4100},
    "softcap and scale": {"softcap": 5.0, "logit_scale": 0.8},
    "temperature": {"heat": True},
    "bias and cut": {"bias": True, "valid_vocab": 190},
}


@pytest.mark.parametrize("chosen", [ALL, SEQUENCE, PLAIN], ids=["all", "sequence", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_triton_equals_the_reference(name: str, dtype: torch.dtype, chosen: Any) -> None:
    options = dict(CASES[name])
    vocab, slots = options.pop("vocab", 200), 24
    heat = np.where(np.arange(20) % 3 == 0, 0.7, 1.0) if options.pop("heat", False) else None
    g = torch.Generator().manual_seed(0)
    make = lambda *s, k=1.0: (k * torch.randn(*s, generator=g)).to(dtype).requires_grad_()  # noqa: E731
    hidden, weight = make(slots, 32), make(vocab, 32, k=0.3)
    bias = make(vocab) if options.pop("bias", False) else None
    batch = random_batch(
        1,
        slots=slots,
        targets=20,
        vocab=190,
        components=NAMES,
        dtype=torch.float32,
        shared_parents=True,
        temperature=heat,
    )
    inputs = [x for x in (hidden, weight, bias) if x is not None]
    kernels = loss.from_hidden(
        chosen, hidden, weight, batch, bias=bias, head="triton", chunk=9, entropy=True, **options
    )
    plain = loss.from_hidden(chosen, hidden, weight, batch, bias=bias, head="reference", entropy=True, **options)
    loose = 2e-2 if dtype == torch.bfloat16 else 1e-5
    assert torch.allclose(kernels.logprobs, plain.logprobs, rtol=loose, atol=loose)
    assert kernels.entropy is not None
    assert plain.entropy is not None
    assert torch.allclose(kernels.entropy, plain.entropy, rtol=loose, atol=loose)
    for a, b in zip(torch.autograd.grad(kernels.total, inputs), torch.autograd.grad(plain.total, inputs)):
        assert (a - b).abs().max() <= loose * b.abs().max()


def test_minus_infinite_logits_make_no_nan() -> None:
    hidden, weight = torch.randn(6, 8), torch.randn(60, 8)
    bias = torch.zeros(60)
    bias[:4] = bias[30:] = float("-inf")
    batch = random_batch(2, slots=6, targets=5, dtype=torch.float32, target_id=[4, 9, 12, 20, 29], components=NAMES)
    leaf = weight.clone().requires_grad_()
    out = loss.from_hidden(ALL, hidden, leaf, batch, bias=bias, head="triton", entropy=True)
    assert torch.isfinite(out.total)
    assert torch.isfinite(torch.autograd.grad(out.total, leaf)[0]).all()


def test_float64_is_refused() -> None:
    batch = random_batch(3, slots=8, targets=5)
    with pytest.raises(LossError, match="computes in float32"):
        loss.from_hidden(PLAIN, torch.randn(8, 4).double(), torch.randn(50, 4).double(), batch, head="triton")
