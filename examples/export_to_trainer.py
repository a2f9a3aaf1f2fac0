"""Shards with a recipe's weights, for another trainer: materialize, read the Arrow columns, train in plain torch.

python examples/export_to_trainer.py [SHARDS]     (default: the bundled rollouts)

A trainer needs no recipe and no tracemask to use them: every row carries weight.rl, denominator.rl and advantage per
token, and Σ weight · term / denominator over any split of the step is the step's loss. Index t speaks of token t.
For trainers with a format of their own, `tracemask export SHARDS --to trl | verl | prime-rl | hf | parquet | jsonl`.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[1]


def tracemask(*words: object) -> None:
    """One command of the product."""
    subprocess.run([sys.executable, "-m", "tracemask_cli.main", *map(str, words)], check=True, capture_output=True)


def rows(shards: Path) -> list[dict[str, Any]]:
    """The rows of all shards, read by pyarrow alone."""
    tables = [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in sorted(shards.glob("*.arrow"))]
    return [row for table in tables for row in table.to_pylist()]


def main(shards: str | None = None, model: str = str(ROOT / "fixtures/models/tiny")) -> float:
    """One step of DAPO in a plain loop; returns the loss, which is `tracemask train`'s."""
    with tempfile.TemporaryDirectory() as folder:
        if shards is None:
            shards = f"{folder}/shards"
            log, tokenizer = ROOT / "fixtures/rollouts/harbour.jsonl", ROOT / "fixtures/tokenizers/small"
            tracemask("convert", log, "--tokenizer", tokenizer, "-o", shards, "--max-skipped", 1)
        tracemask("materialize", shards, "--recipe", "dapo", "-o", f"{folder}/weighted")
        found = rows(Path(folder) / "weighted")
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-5)
    value = 0.0
    for row in found:
        ids = torch.tensor(row["token_ids"])
        weight = torch.tensor(row["weight.rl"])[1:] / torch.tensor(row["denominator.rl"])[1:]
        keep = weight != 0
        if not keep.any():
            continue
        lp = policy(ids[None], use_cache=False).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        ratio = (lp[keep] - torch.tensor(row["logprob"])[1:][keep]).exp()
        advantage = torch.tensor(row["advantage"])[1:][keep]
        term = -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        part = (weight[keep] * term).sum()
        part.backward()
        value += float(part.detach())
    optimizer.step()
    return value


if __name__ == "__main__":
    print(f"loss {main(*sys.argv[1:2]):.6f}")
