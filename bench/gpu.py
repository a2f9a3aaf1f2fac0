"""One GPU, under six minutes, and no result lost: checks of the head, of flex attention and of a training run, timings.

    python bench/gpu.py [--out FILE] [--seconds 330] [--size full|small|tiny] [--device cuda|cpu]

Each section is a process of its own with its own time limit: a crash, a hang or a poisoned CUDA context ends that
section alone, and the JSON is written anew after each. bf16, H 4096, V 151,936, T 16,384 and 32,768. TFLOP/s count
6·T·H·V whatever a head computes. Exit 1 when a check fails; timings are taken all the same, marked unchecked. Peers
(trl, liger-kernel) take part where they are installed. `--device cpu --size tiny` tries the script itself out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from loss_contenders import CE, GRPO, Problem, available, gradients, ours, two_pass
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
SHAPES = {"full": (4096, 151_936, (16_384, 32_768)), "small": (1024, 32_768, (8_192,)), "tiny": (16, 500, (128,))}
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
    truth = gradients(lambda x: ours(x, head="reference"), wide)
    fused = gradients(ours, p)
    plain = gradients(lambda x: ours(x, head="reference"), p)
    out = {}
    for i, name in ((1, "hidden"), (2, "weight")):
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


def milliseconds(bench: Bench, contender: Callable[[Problem], Tensor], p: Problem, rounds: int) -> dict[str, float]:
    """Median time of forward and backward, and peak extra GiB."""
    if bench.device == "cpu":
        times = []
        for _ in range(rounds):
            begun = time.process_time()
            gradients(contender, p)
            times.append(1e3 * (time.process_time() - begun))
        return {"ms": round(statistics.median(times), 3)}
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    gradients(contender, p)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        gradients(contender, p)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return {"ms": round(statistics.median(times), 2), "peak_gib": round(peak, 2)}


def liger_ce(p: Problem) -> Tensor:
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    labels = torch.where(p.mask > 0, p.ids, -100)
    return LigerFusedLinearCrossEntropyLoss()(p.weight, p.hidden, labels)


def section_table(bench: Bench, slots: int) -> None:
    """Time, TFLOP/s as 6THV of the selected positions, and memory of every head; ours first, so that it is in."""
    width, vocab, _ = SHAPES[bench.size]
    heads: dict[str, Callable[[Problem], Tensor]] = {"tracemask": ours} | dict(available())
    heads |= {
        "tracemask, entropy metric": partial(ours, entropy=True),
        "tracemask, two passes": two_pass,
        "tracemask, ce only": partial(ours, recipe=CE),
        "tracemask, torch rows": partial(ours, head="chunked"),
    }
    if bench.device == "cpu":
        heads.pop("liger", None)
    elif "liger" in heads:
        heads["liger, ce only"] = liger_ce
    if slots > 20_000:
        heads.pop("naive")
    for share in (0.25, 1.0):
        p = Problem.make(slots, width, vocab, share, sequences=8, device=bench.device, dtype=torch.bfloat16)
        useful = 6 * len(p.batch) * width * vocab
        for name, head in heads.items():
            row: dict[str, Any] = {"T": slots, "selected": share, "head": name}
            try:
                row |= milliseconds(bench, head, p, 3 if name in ("liger", "naive") else 5)
                row["tflops_6thv"] = round(useful / row["ms"] / 1e9, 1)
            except Exception as error:  # a peer that fails must not cost our numbers
                row["skipped"] = f"{type(error).__name__}: {error}"[:300]
            bench.write(row=row)


def sections(size: str, device: str) -> dict[str, tuple[Callable[[Bench], None], float]]:
    """name → (what runs, seconds it may take), the most wanted first."""
    first, *others = SHAPES[size][2]
    plan: dict[str, tuple[Callable[[Bench], None], float]] = {
        "head": (section_head, 110.0),
        f"table {first}": (partial(section_table, slots=first), 110.0),
        "train": (section_train, 80.0),
    }
    if device == "cuda":
        plan["flex"] = (section_flex, 60.0)
    return plan | {f"table {slots}": (partial(section_table, slots=slots), 150.0) for slots in others}


def verdicts(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The targets of the design, as ratios within this run."""
    ms = {(r["T"], r["selected"], r["head"]): r["ms"] for r in rows if "ms" in r}
    out: dict[str, Any] = {}

    def ratio(label: str, slower: str, faster: str, share: float, target: float) -> None:
        for slots in sorted({t for t, _, _ in ms}):
            a, b = ms.get((slots, share, slower)), ms.get((slots, share, faster))
            if a and b:
                out[f"T {slots}: {label}"] = {"ratio": round(a / b, 3), "target": target, "reached": a / b >= target}

    ratio("25 % selected, times faster than Liger's GRPO", "liger", "tracemask", 0.25, 4.0)
    ratio("25 % selected, times faster than TRL's compacting head", "trl", "tracemask", 0.25, 1.15)
    ratio("100 %, times faster than two passes (8THV)", "tracemask, two passes", "tracemask", 1.0, 1.2)
    ratio("ce only against Liger's kernel", "liger, ce only", "tracemask, ce only", 1.0, 0.95)
    ratio("without against with the entropy metric", "tracemask", "tracemask, entropy metric", 1.0, 1 / 1.08)
    for r in rows:
        if r["head"] == "tracemask" and r["selected"] == 1.0 and "tflops_6thv" in r:
            reached = r["tflops_6thv"] >= 600
            out[f"T {r['T']}: TFLOP/s as 6THV"] = {"value": r["tflops_6thv"], "target": 600, "reached": reached}
    return out


def read(lines: Path) -> Iterator[dict[str, Any]]:
    """The findings so far; a line cut by a kill is left out."""
    for line in lines.read_text(encoding="utf-8").splitlines() if lines.is_file() else ():
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)


def run_section(name: str, args: argparse.Namespace, lines: Path, seconds: float) -> dict[str, Any]:
    """One section as a process: how it ended, and how long it took."""
    command = [sys.executable, __file__, "--device", args.device, "--size", args.size]
    begun = time.monotonic()
    try:
        subprocess.run([*command, "--section", name, "--lines", str(lines)], timeout=seconds, check=True)
        ended = "finished"
    except subprocess.TimeoutExpired:
        ended = f"stopped after {seconds:.0f} s"
    except subprocess.CalledProcessError as error:
        ended = f"exit {error.returncode}"
    return {"section": name, "ended": ended, "seconds": round(time.monotonic() - begun, 1)}


def report_of(args: argparse.Namespace, lines: Path, ran: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything known so far."""
    found = list(read(lines))
    rows = [one["row"] for one in found if "row" in one]
    checks = {one["check"]: {k: v for k, v in one.items() if k != "check"} for one in found if "check" in one}
    device = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    checked = bool(checks) and all(one["passed"] for one in checks.values())
    report = {"torch": torch.__version__, "device": device, "size": args.size, "checked": checked, "sections": ran}
    return report | {"checks": checks, "rows": rows, "verdicts": verdicts(rows)}


def write_whole(path: Path, report: dict[str, Any]) -> None:
    """The report, or the one before: never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "loss_gpu.json")
    parser.add_argument("--seconds", type=float, default=330.0)
    parser.add_argument("--size", choices=SHAPES, default="full")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--section", help="run this one alone, for the parent process")
    parser.add_argument("--lines", type=Path)
    args = parser.parse_args()
    plan = sections(args.size, args.device)
    if args.section:
        warnings.filterwarnings("ignore")
        plan[args.section][0](Bench(args.device, args.size, args.lines))
        return 0
    until, ran, report = time.monotonic() + args.seconds, [], {}
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines.jsonl"
        for name, (_, seconds) in plan.items():
            left = min(seconds, until - time.monotonic())
            ran.append(run_section(name, args, lines, left) if left > 5 else {"section": name, "ended": "no time left"})
            report = report_of(args, lines, ran)
            write_whole(args.out, report)
    print(json.dumps(report["verdicts"], indent=1, ensure_ascii=False))
    return int(not report["checked"] or any(one["ended"] != "finished" for one in ran))


if __name__ == "__main__":
    sys.exit(main())
