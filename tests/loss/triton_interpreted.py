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


@pytest.mark.parametrize("head", ["triton", "chunked"])
@pytest.mark.parametrize("vocab", [1, 2, 4095, 4096, 4097])
@pytest.mark.parametrize(("targets", "width"), [(0, 7), (1, 1), (13, 7)])
def test_shapes_at_the_edges_of_blocks(head: str, vocab: int, targets: int, width: int) -> None:
    """No target, one target, one column, one token: strided inputs, rows that do not fill a chunk."""
    g = torch.Generator().manual_seed(vocab)
    hidden = torch.randn(2 * width, 16, generator=g)[::2].t().requires_grad_()
    weight = torch.randn(2 * vocab, width, generator=g)[::2].requires_grad_()
    batch = random_batch(
        1, slots=16, targets=targets, vocab=vocab, components=NAMES, dtype=torch.float32, shared_parents=True
    )
    out = loss.from_hidden(ALL, hidden, weight, batch, head=head, chunk=5, entropy=True)
    plain = loss.from_hidden(ALL, hidden, weight, batch, head="reference", entropy=True)
    assert torch.allclose(out.logprobs, plain.logprobs, atol=1e-5)
    assert out.entropy is not None
    assert plain.entropy is not None
    assert torch.allclose(out.entropy, plain.entropy, atol=1e-4)
    slopes = torch.autograd.grad(out.total, (hidden, weight))
    for a, b in zip(slopes, torch.autograd.grad(plain.total, (hidden, weight))):
        assert (a - b).abs().max() <= 2e-5 * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize("head", ["triton", "chunked"])
@pytest.mark.parametrize("size", [1e2, 1e4])
def test_logits_of_ten_thousand_are_exact(head: str, size: float) -> None:
    g = torch.Generator().manual_seed(0)
    hidden = (size**0.5 * torch.randn(16, 7, generator=g)).requires_grad_()
    weight = (size**0.5 * torch.randn(4097, 7, generator=g)).requires_grad_()
    batch = random_batch(1, slots=16, targets=13, vocab=4097, components=NAMES, dtype=torch.float32)
    out = loss.from_hidden(ALL, hidden, weight, batch, head=head)
    plain = loss.from_hidden(ALL, hidden, weight, batch, head="reference")
    assert out.total.item() == pytest.approx(plain.total.item(), rel=1e-6)
    slopes = torch.autograd.grad(out.total, (hidden, weight))
    for a, b in zip(slopes, torch.autograd.grad(plain.total, (hidden, weight))):
        assert torch.isfinite(a).all()
        assert (a - b).abs().max() <= 1e-4 * b.abs().max()


@pytest.mark.filterwarnings("ignore:.*encountered:RuntimeWarning")  # the interpreter's numpy
@pytest.mark.parametrize("head", ["triton", "chunked"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 3e38])
@pytest.mark.parametrize("where", ["hidden", "weight"])
def test_what_is_not_finite_is_reported_and_never_hidden(head: str, bad: float, where: str) -> None:
    hidden, weight = torch.randn(16, 7).abs() + 1, torch.randn(4097, 7).abs() + 1
    batch = random_batch(1, slots=16, targets=13, vocab=4097, components=NAMES, dtype=torch.float32, selected=1.0)
    if where == "hidden":
        hidden[batch.parent_slot[2]] = bad
    else:
        weight[4096] = bad
    with pytest.raises(LossError, match="TM404 (log-prob|entropy)"):
        loss.from_hidden(ALL, hidden.requires_grad_(), weight.requires_grad_(), batch, head=head, entropy=True)


def test_float64_is_refused() -> None:
    batch = random_batch(3, slots=8, targets=5)
    with pytest.raises(LossError, match="computes in float32"):
        loss.from_hidden(PLAIN, torch.randn(8, 4).double(), torch.randn(50, 4).double(), batch, head="triton")
