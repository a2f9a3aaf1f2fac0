"""`make real`: 16 rollouts sampled from SmolLM2-135M-Instruct, taken through all four jobs by the product's verbs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from sample_harbour import sample

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "fixtures" / ".cache" / "smollm2"


def run(*arguments: object) -> None:
    """One tracemask command, printed first; a coded failure stops the example."""
    words = [str(argument) for argument in arguments]
    print("\n$ tracemask", *words, flush=True)
    done = subprocess.run([sys.executable, "-m", "tracemask_cli.main", *words])
    if done.returncode:
        sys.exit(done.returncode)


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    log, shards = out / "boats.jsonl", out / "shards"
    print("sampled", sample(MODEL, log), flush=True)
    run("convert", log, "--tokenizer", MODEL, "-o", shards, "--force")
    run("score", shards, "--model", MODEL, "--as", "score", "-o", out / "scored")
    run("check", out / "scored", "--tokenizer", MODEL, "--require", "TM402")
    run("show", shards, "--tokenizer", MODEL, "--row", "0")
    run("train", shards, "--model", MODEL, "--recipe", "grpo", "--steps", "2", "-o", out / "run")
    run("report", out / "scored", "--tokenizer", MODEL, "-o", out / "report.html")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "out" / "real")
