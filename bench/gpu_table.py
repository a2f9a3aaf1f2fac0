"""What gpu.py times: every head on the same problems, and the design's targets as ratios within one run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gpu_checks import Bench
from loss_contenders import CE, Problem, available, gradients, ours, two_pass
from torch import Tensor

SHAPES = {"full": (4096, 151_936, (16_384, 32_768)), "small": (1024, 32_768, (8_192,)), "tiny": (16, 500, (128,))}


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
