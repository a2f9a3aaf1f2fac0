"""The fused head on a CPU beside naive torch, TRL's chunked head and Liger's chunked GRPO loss. JSON out.

One thread, CPU seconds, contenders interleaved, medians: ratios do not depend on what else the machine does.
Peak memory is what a forked child's resident set grows by. Loss and gradients are compared before anything is timed.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from loss_contenders import Problem, available, gradients
from torch import Tensor

OUT = Path(__file__).parent / "results" / "loss_cpu.json"
SLOTS, WIDTH, VOCAB, SEQUENCES = 2048, 512, 16_000, 8
SHARES = (0.10, 0.25, 0.50, 1.0)
ROUNDS = 3
MMAP_THRESHOLD = -3  # mallopt's name for it
WHOLE = ("naive", "liger")  # their time does not depend on the mask


def agree(p: Problem, contenders: dict[str, Callable[[Problem], Tensor]]) -> dict[str, float]:
    """Largest relative difference to naive torch in loss and gradients; raises where it is not rounding."""
    value, *expected = gradients(contenders["naive"], p)
    out = {}
    for name, contender in contenders.items():
        other, *found = gradients(contender, p)
        worst = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, expected))
        out[name] = max(worst, abs(other - value))
        assert out[name] < 1e-4, f"{name} differs from naive torch by {out[name]:.1e}"
    return out


def seconds(contender: Callable[[Problem], Tensor], p: Problem) -> float:
    started = time.process_time()
    gradients(contender, p)
    return time.process_time() - started


def peak(contender: Callable[[Problem], Tensor], p: Problem) -> float:
    """MiB that a forked child's peak resident set lies above its start, every tensor in pages of its own.

    Otherwise what the parent freed and kept would serve the child, and the growth would depend on what ran before.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_THRESHOLD, 1 << 16)
        libc.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = resident("VmRSS")
        gradients(contender, p)
        os.write(write, str(resident("VmHWM") - before).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    grown = int(os.read(read, 100))
    os.close(read)
    return grown / 1024


def resident(field: str) -> int:
    """KiB, from the kernel's words on this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0])


def each(problems: dict[float, Problem], contenders: dict[str, Callable[[Problem], Tensor]]) -> Iterator[Any]:
    """(share, problem, name, contender), interleaved; heads that always take every position run once a round."""
    for share, p in problems.items():
        for name, contender in contenders.items():
            if name not in WHOLE or share == SHARES[-1]:
                yield share, p, name, contender


def main() -> None:
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    contenders = available()
    problems = {
        share: Problem.make(SLOTS, WIDTH, VOCAB, share, sequences=SEQUENCES, device="cpu", dtype=torch.float32)
        for share in SHARES
    }
    difference = {share: agree(p, contenders) for share, p in problems.items() if share in (0.25, 1.0)}
    memory: dict[float, dict[str, float]] = {share: {} for share in SHARES}
    times: dict[float, dict[str, list[float]]] = {s: {name: [] for name in contenders} for s in SHARES}
    for share, p, name, contender in each(problems, contenders):
        for at in SHARES if name in WHOLE else [share]:
            memory[at][name] = memory[at].get(name) or peak(contender, p)
    for _ in range(ROUNDS):
        for share, p, name, contender in each(problems, contenders):
            spent = seconds(contender, p)
            for at in SHARES if name in WHOLE else [share]:
                times[at][name].append(spent)
    rows = []
    for share in SHARES:
        median = {name: statistics.median(t) for name, t in times[share].items()}
        for name in contenders:
            rows.append(
                {
                    "selected": share,
                    "head": name,
                    "cpu_seconds": round(median[name], 4),
                    "time_of_naive": round(median[name] / median["naive"], 3),
                    "peak_mib": round(memory[share][name], 1),
                    "memory_of_naive": round(memory[share][name] / memory[share]["naive"], 3),
                    "difference": float(f"{difference[0.25 if share < 1 else 1.0][name]:.1e}"),
                }
            )
            print("{selected:>5.0%} {head:>10} {cpu_seconds:8.3f} s  × {time_of_naive:5.3f}   "
                  "{peak_mib:8.1f} MiB  × {memory_of_naive:5.3f}   {difference:.0e}".format(**rows[-1]))  # fmt: skip
    report: dict[str, Any] = {
        "shape": {"slots": SLOTS, "width": WIDTH, "vocabulary": VOCAB, "dtype": "float32", "threads": 1},
        "rounds": ROUNDS,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "rows": rows,
    }
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
