"""RL with an external sampler, through files alone: sample, convert, check, train, 24 times. `make rl` runs it.

    sampler ── logs/0001.jsonl ── tracemask convert ── shards/0001 ── tracemask check ── tracemask train --follow
       └───────────────────────────────── run/model (exported after each step) ──────────────────────┘

The reward is 1 for an answer that names a colour within 10 tokens; it goes from about 0.2 to 1.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from pathlib import Path

import torch
from sampler import Sampler, write

ROOT = Path(__file__).resolve().parents[2]
TRACEMASK = [sys.executable, "-m", "tracemask_cli.main"]


def start(*words: object) -> subprocess.Popen[str]:
    """One command of the product, running."""
    return subprocess.Popen([*TRACEMASK, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(running: subprocess.Popen[str]) -> None:
    """Wait for it; what it said is shown when it failed."""
    said, _ = running.communicate()
    if running.returncode:
        sys.exit(f"{running.args}\n{said}")


def main() -> None:
    """Play the loop; print one line a step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=ROOT / "fixtures" / ".cache" / "smollm2")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "rl")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    shards, run = options.out / "shards", options.out / "run"
    shards.mkdir(parents=True)
    trainer = subprocess.Popen(
        [*TRACEMASK, "train", str(shards), "--follow", "--steps", str(options.steps), "--export-every", "1"]
        + ["--model", str(options.model), "--recipe", "dapo", "--lr", "1e-5", "--out", str(run)]
        + ["--seed", str(options.seed)],
        stderr=(options.out / "train.log").open("w"),
        stdout=subprocess.DEVNULL,
    )
    try:
        rewards = play(options, shards, run)
    finally:
        if sys.exc_info()[0] is not None:
            trainer.terminate()
        code = trainer.wait()
    last = sum(rewards[-5:]) / len(rewards[-5:])
    print(f"mean reward of the last {len(rewards[-5:])} steps: {last:.3f}; model in {run / 'model'}")
    sys.exit(code)


def play(options: argparse.Namespace, shards: Path, run: Path) -> list[float]:
    """The sampler's side; returns the mean reward of each step."""
    torch.manual_seed(options.seed)
    sampler = Sampler(options.model)
    started, rewards = time.monotonic(), []
    for step in range(1, options.steps + 1):
        name = f"{step:04d}"
        log = options.out / "logs" / f"{name}.jsonl"
        lines = sampler.rollouts(options.rollouts, tokens=options.tokens, group=f"colour-{name}")
        write(lines, log)
        finish(start("convert", log, "--tokenizer", options.model, "-o", shards / name))
        check = start("check", shards / name, "--tokenizer", options.model)  # while the trainer is at work
        sampler.load(run / "model", step=step)
        finish(check)
        rewards.append(sum(line["reward"] for line in lines) / len(lines))
        answer = lines[0]["messages"][-1]["content"][:50]
        print(f"step {step:2d}  reward {rewards[-1]:.3f}  {time.monotonic() - started:5.1f} s  {answer!r}", flush=True)
    return rewards


if __name__ == "__main__":
    main()
