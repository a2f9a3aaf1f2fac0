"""What gpu.py checks on the device: the head against autograd, flex attention, a training step. Times nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from loss_contenders import GRPO, Problem, gradients, ours
from torch import Tensor

from tracemask import loss
from tracemask.loss.lm_head.chunked import add_outer_
from tracemask.recipe import Recipe

ALL = Recipe.load(
    {
        "name": "all",
        "advantage": {"estimator": "given"},
        "rl": {"term": "gspo"},
        "ce": {"term": "ce", "coef": 0.1},
        "entropy": {"term": "entropy", "coef": 0.05, "select": [{"sampled": True}]},
    }
)
CHECKED = {"full": (1024, 256, 33_000), "small": (1024, 256, 33_000), "tiny": (64, 8, 200)}


class Bench:
    """Where a section runs, and where its findings go: one JSON line each, flushed, so that a kill loses nothing."""

    def __init__(self, device: str, size: str, lines: Path) -> None:
        self.device, self.size, self.lines = device, size, lines
        self.head = "triton" if device == "cuda" else "chunked"

    def write(self, **found: Any) -> None:
        """One finding."""
        with self.lines.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found, ensure_ascii=False) + "\n")
        print(json.dumps(found, ensure_ascii=False), flush=True)

    def check(self, name: str, run: Callable[[], dict[str, Any]]) -> None:
        """Run one check; its failure is a finding, and the next one runs."""
        try:
            self.write(check=name, passed=True, **run())
        except Exception as error:  # whatever a machine that nobody has seen may raise
            self.write(check=name, passed=False, error=f"{type(error).__name__}: {error}"[:3000])

    def problem(self, dtype: torch.dtype, share: float = 0.5) -> Problem:
        """A small problem for checks."""
        return Problem.make(*CHECKED[self.size], share, sequences=8, device=self.device, dtype=dtype)


def worst(found: tuple[Any, ...], expected: tuple[Any, ...]) -> float:
    """Largest relative difference in loss, d hidden, d weight."""
    parts = [abs(found[0] - expected[0]) / max(1.0, abs(expected[0]))]
    parts += [float((a.double() - b.double()).norm() / b.double().norm()) for a, b in zip(found[1:], expected[1:])]
    return max(parts)


def entropy_too(p: Problem) -> Problem:
    p.batch.weights["entropy"] = p.batch.weights["rl"]  # type: ignore[index]
    p.batch.denominator["entropy"] = p.batch.denominator["rl"]  # type: ignore[index]
    return p


def check_options(bench: Bench) -> dict[str, float]:
    """float32, TF32 off: kernels against autograd through all logits, for every option."""
    torch.backends.cuda.matmul.allow_tf32 = False
    p, out = entropy_too(bench.problem(torch.float32)), {}
    vocab = CHECKED[bench.size][2]
    p = replace(p, batch=replace(p.batch, target_id=p.batch.target_id.clamp(max=vocab - 8)))
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "softcap and scale": {"softcap": 5.0, "logit_scale": 0.8},
        "valid_vocab": {"valid_vocab": vocab - 7},
        "small chunks": {"chunk": 100},
    }
    for recipe in (GRPO, ALL):
        for name, kwargs in options.items():
            fused = gradients(lambda x, k=kwargs, r=recipe: ours(x, r, head=bench.head, **k), p)
            plain = {key: value for key, value in kwargs.items() if key != "chunk"}
            expected = gradients(lambda x, k=plain, r=recipe: ours(x, r, head="reference", **k), p)
            out[f"{recipe.name}: {name}"] = worst(fused, expected)
    assert max(out.values()) < 2e-5, out
    return out


def check_bf16(bench: Bench) -> dict[str, float]:
    """bf16 error against float64 truth, ours and the float32-accumulated baseline; ours may be a fifth larger."""
    p = bench.problem(torch.bfloat16)
    wide = replace(p, **{n: getattr(p, n).detach().double().requires_grad_() for n in ("hidden", "weight")})
    truth = gradients(lambda x: ours(x, head="reference"), wide)[1:]
    fused = gradients(ours, p)[1:]
    plain = gradients(lambda x: ours(x, head="reference"), p)[1:]
    out = {}
    for i, name in enumerate(("hidden", "weight")):
        size = truth[i].norm()
        out[f"ours, {name}"] = float((fused[i].double() - truth[i]).norm() / size)
        out[f"baseline, {name}"] = float((plain[i].double() - truth[i]).norm() / size)
        assert out[f"ours, {name}"] <= 1.2 * out[f"baseline, {name}"] + 1e-6, out
    return out


def check_outer(bench: Bench) -> dict[str, float]:
    """The mixed product dW += zᵀ·x: bf16 factors, float32 sum, into memory that held NaN, and onto a sum."""
    z, x = (torch.randn(384, n, device=bench.device).bfloat16() for n in (520, 136))
    total = torch.full((520, 136), float("nan"), device=bench.device)
    expected = z.double().t() @ x.double()
    add_outer_(total, z, x, beta=0)
    first = float((total.double() - expected).norm() / expected.norm())
    add_outer_(total, z, x, beta=1)
    second = float((total.double() - 2 * expected).norm() / expected.norm() / 2)
    assert max(first, second) < 1e-5, (first, second)
    return {"written": first, "added": second}


def check_far_rows(bench: Bench) -> dict[str, float]:
    """A buffer of more than 2^31 logits: the last row's address must not wrap around."""
    rows, vocab = (16_500, 131_072) if bench.size == "full" else (300, 500)
    p = Problem.make(rows // 16 * 16, 16, vocab, 1.0, sequences=1, device=bench.device, dtype=torch.bfloat16)
    fused = ours(replace(p, batch=p.batch), head=bench.head, chunk=rows)
    expected = ours(p, head=bench.head, chunk=512)
    gap = abs(float(fused.detach()) - float(expected.detach()))
    assert gap < 1e-4, gap
    return {"logits": float(rows * vocab), "gap": gap}


def check_memory(bench: Bench) -> dict[str, float]:
    """Peak extra memory within the documented bound, on a shape where every part shows."""
    p = Problem.make(8192, 1024, 65_536, 0.25, sequences=8, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    total = loss.from_hidden(GRPO, p.hidden, p.weight, p.batch, chunk=1024).total
    extra = torch.cuda.max_memory_allocated() - before
    bound = 1.1 * (65_536 * 1024 * 4 + 2048 * 1024 * 2 + 1024 * 65_536 * 2)
    total.backward()
    assert extra <= bound, (extra, bound)
    return {"peak extra MiB": extra / 2**20, "bound MiB": bound / 2**20}


def section_head(bench: Bench) -> None:
    """The fused head against autograd."""
    for check in (check_outer, check_options, check_bf16, check_far_rows):
        bench.check(check.__name__, lambda c=check: c(bench))
    if bench.device == "cuda":
        bench.check("check_memory", lambda: check_memory(bench))


def section_flex(bench: Bench) -> None:
    """flex attention against the run-by-run attention, values and gradients."""
    from tracemask.train.attention import check_flex

    def agree() -> dict[str, Any]:
        check_flex(torch.device(bench.device))
        return {}

    bench.check("check_flex", agree)


def rows_of_a_run(seed: int = 0) -> list[Any]:
    """Rollouts with a shared prompt, as convert would write them."""
    import numpy as np

    from tracemask.store.row import Row

    rng, rows = np.random.default_rng(seed), []
    prompts = [rng.integers(0, 200, 40) for _ in range(2)]
    for at in range(8):
        ids = np.concatenate([prompts[at // 4], rng.integers(0, 200, int(rng.integers(10, 60)))]).astype(np.int32)
        sampled = np.arange(len(ids)) >= 40
        columns = {"token_ids": ids, "sampled": sampled, "logprob": np.where(sampled, -5.3, np.nan).astype(np.float32)}
        facts = {"trace_id": f"t{at}", "group_id": f"g{at // 4}", "reward": float(at % 2), "trainable": True}
        rows.append(Row(at, columns, facts))
    return rows


def section_train(bench: Bench) -> None:
    """One step of a small Llama, every attention and dtype, against float64 on the CPU."""
    from tracemask.train.loader import Loader, Policy
    from tracemask.train.model import init_tiny
    from tracemask.train.sources import MemoryRows
    from tracemask.train.step import PolicyStep
    from tracemask.train.update import accumulate

    def step(device: str, dtype: torch.dtype, attention: str, half: torch.dtype | None) -> tuple[float, Tensor]:
        from tracemask.train.distributed import World

        recipe, world = Recipe.load("dapo"), World(device=torch.device(device))
        loader = Loader(MemoryRows(rows_of_a_run()), recipe, Policy(tokens_per_batch=256), world=world, dtype=dtype)
        model = init_tiny(200, dtype=dtype, attention=attention).to(device)
        module = PolicyStep(model, recipe, autocast=half)
        pairs = accumulate(module, loader.step(0).works, world)
        parts = [one.grad.double().flatten().cpu() for one in module.parameters() if one.grad is not None]
        return pairs["loss/rl"][0], torch.cat(parts)

    value, slope = step("cpu", torch.float64, "segments", None)
    for attention in ("segments", "dense", *(("flex",) if bench.device == "cuda" else ())):
        for half, limit in ((None, 1e-3), (torch.bfloat16, 0.15)):

            def agree(a: str = attention, h: Any = half, most: float = limit) -> dict[str, Any]:
                found, gradient = step(bench.device, torch.float32, a, h)
                gap = float((gradient - slope).norm() / slope.norm())
                assert gap < most, gap
                return {"loss gap": abs(found - value), "gradient gap": gap}

            bench.check(f"train, {attention}, {'bf16' if half else 'float32'}", agree)
