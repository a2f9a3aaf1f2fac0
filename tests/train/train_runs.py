"""Runs of the train tests: a small configuration, another tool's rows, and what a run left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from tracemask.train.config import TrainConfig

UNTIMED = ("seconds", "tokens_per_second")


def config(data: str, out: Path, **changes: Any) -> TrainConfig:
    base: dict[str, Any] = {
        "data": [data],
        "init_tiny": True,
        "recipe": "grpo",
        "out": str(out),
        "steps": 4,
        "groups_per_step": 2,
        "tokens_per_batch": 120,
        "lr": 1e-3,
        "export": False,
    }
    return TrainConfig.of({**base, **changes})


def lines(out: Path) -> list[dict[str, Any]]:
    """The metrics lines without what a clock decides."""
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in one.items() if name not in UNTIMED} for one in found]


def weights(out: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(str(out / "model" / "model.safetensors"))


def foreign(path: Path, **last: Any) -> str:
    """Two groups of two rows as another tool writes them; `last` changes the last row. None takes a column away."""
    rows: list[dict[str, Any]] = [
        {"input_ids": [1, 2, 3, 4 + k], "loss_mask": [0, 0, 1, 1], "logprobs": [-1.0] * 4, "uid": uid, "reward": k}
        for uid in "ab"
        for k in range(2)
    ]
    rows[-1] = {name: value for name, value in {**rows[-1], **last}.items() if value is not None}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
