"""The ratios in the README are those of the results that are committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def result(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text(encoding="utf-8"))


def rows() -> dict[str, str]:
    """What the README says, by the command that shows it, from the results."""
    render = {name: entry["times renderers"] for name, entry in result("render")["peers"].items()}
    peers = (("qwen3", "Qwen3"), ("llama3_1", "Llama 3"), ("deepseek_v3", "DeepSeek V3"))
    default = ", ".join(f"{said} {render[name]['tracemask']:.1f}" for name, said in peers)
    fast = ", ".join(f"{render[name]['tracemask, gigatoken']:.1f}" for name, _ in peers)
    taken = result("store")["random row, us"]
    fetch = [taken["datasets torch"] / taken[f"tracemask {profile}"] for profile in ("fast", "compact")]
    head = next(row for row in result("loss_cpu")["rows"] if row["head"] == "tracemask" and row["selected"] == 0.25)
    tree = result("train")["shapes"]["0.30"]
    return {
        "bench/render.py": f"{default}; with gigatoken {fast}",
        "bench/check.py": f"{result('check')['cpu_ratio']:.2f}",
        "bench/store.py": f"{fetch[0]:.0f}; compressed {fetch[1]:.1f}",
        "bench/loss.py": f"{head['time_of_naive']:.2f}",
        "bench/train.py": f"{tree['tree_over_rows']:.2f} at {tree['token_ratio']:.2f} of the tokens",
    }


def test_the_readme_quotes_the_committed_results() -> None:
    table = [line for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if "`bench/" in line]
    said = {line.split("|")[3].strip().strip("`"): line.split("|")[2].strip() for line in table}
    assert said == rows()
