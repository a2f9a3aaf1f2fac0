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
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_checks import Bench, section_flex, section_head, section_train
from gpu_table import SHAPES, section_table, verdicts


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
