"""`make experiments`: runs every claim over its seeds, writes numbers (results/) and figures (figures/).

python docs/experiments/run.py [NAME ...] [--seeds N] [--jobs N] [--figures]   (--figures only draws again)
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import denominators
from figure import Series, lines, points

HERE = Path(__file__).parent
SEEDS = {"length_bias": 4, "observation_mask": 4, "echo": 8}
SHOWN = {  # figure title, axis, and what to average at the end
    "length_bias": ("Length of failed (solid) and right (dashed) rollouts", "sampled tokens", 10),
    "observation_mask": ("Reward by what the loss mask covers", "reward", 20),
    "echo": ("Reward with and without cross-entropy on observations", "reward", 40),
}

Curves = dict[str, dict[str, list[list[float]]]]  # variant → quantity → seed → step


def one(task: tuple[str, str, int]) -> dict[str, list[float]]:
    """One run of one variant with one seed, on one thread."""
    import torch

    torch.set_num_threads(1)
    name, variant, seed = task
    return importlib.import_module(name).run(variant, seed)


def collect(name: str, seeds: int, jobs: int) -> Curves:
    """All variants of one claim over its seeds."""
    variants = list(importlib.import_module(name).VARIANTS)
    tasks = [(name, variant, seed) for variant in variants for seed in range(seeds)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        found = list(pool.map(one, tasks))
    curves: Curves = {}
    for (_, variant, _), result in zip(tasks, found, strict=True):
        for quantity, values in result.items():
            curves.setdefault(variant, {}).setdefault(quantity, []).append([round(value, 4) for value in values])
    return curves


def ends(curves: Curves, last: int) -> list[tuple[str, str, float, float, float]]:
    """(variant, quantity, mean, smallest, largest) over seeds of the mean over the last steps."""
    rows = []
    for variant, quantities in curves.items():
        for quantity, seeds in quantities.items():
            means = [statistics.fmean(values[-last:]) for values in seeds]
            rows.append((variant, quantity, statistics.fmean(means), min(means), max(means)))
    return rows


def draw(name: str, curves: Curves) -> None:
    """The figure of one claim: mean over seeds, band from the smallest to the largest."""
    title, axis, _ = SHOWN[name]
    series = [
        Series(
            f"{variant}" + (f", {quantity}" if len(quantities) > 1 else ""), seeds, dashed=quantity == "right", hue=at
        )
        for at, (variant, quantities) in enumerate(curves.items())
        for quantity, seeds in quantities.items()
    ]
    path = HERE / "figures" / f"{name}.svg"
    path.write_text(lines(series, title=title, across="step", up=axis), encoding="utf-8")


def main() -> None:
    """Run what was asked for, print one table a claim."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(SEEDS)}, denominators; default all")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--figures", action="store_true")
    options = parser.parse_args()
    for folder in ("results", "figures"):
        (HERE / folder).mkdir(exist_ok=True)
    for name in options.names or [*SEEDS, "denominators"]:
        started, file = time.monotonic(), HERE / "results" / f"{name}.json"
        if name == "denominators":
            table = denominators.compare()
            (HERE / "figures" / "denominators.svg").write_text(points(*denominators.figure(table)), encoding="utf-8")
            file.write_text(json.dumps(table, indent=1) + "\n", encoding="utf-8")
            denominators.show(table)
            continue
        if not options.figures:
            curves = collect(name, options.seeds or SEEDS[name], options.jobs)
            file.write_text(json.dumps(curves) + "\n", encoding="utf-8")
        curves = json.loads(file.read_text(encoding="utf-8"))
        draw(name, curves)
        print(f"\n{name} ({time.monotonic() - started:.0f} s): mean over seeds [smallest, largest] of the last steps")
        for variant, quantity, mean, low, high in ends(curves, SHOWN[name][2]):
            print(f"  {variant:22s} {quantity:8s} {mean:7.3f}  [{low:.3f}, {high:.3f}]")


if __name__ == "__main__":
    main()
