"""prime-rl's and the paper's ECHO denominators on the same rollouts: how hard each rollout's observations pull.

prime-rl divides the cross-entropy by all selected observation tokens of the step: a rollout pulls in proportion to how
much its tools printed. The paper divides each rollout's by its own observation tokens, then averages over rollouts.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tracemask.recipe import Recipe
from tracemask.recipe.advantage import compute
from tracemask.recipe.step import lay_step
from tracemask.store.convert import RenderConfig, convert
from tracemask.store.reader import open_dataset

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"echo": "prime-rl (step)", "echo_paper": "paper (per rollout)"}


def compare() -> dict[str, list[dict[str, Any]]]:
    """Per recipe, one entry a rollout of the bundled log: its observation tokens and its share of the ce weight."""
    with tempfile.TemporaryDirectory() as folder:
        render = RenderConfig(tokenizer=str(ROOT / "fixtures" / "tokenizers" / "small"))
        convert(str(ROOT / "fixtures" / "rollouts" / "harbour.jsonl"), f"{folder}/shards", render=render, max_skipped=1)
        dataset = open_dataset(f"{folder}/shards")
        rows = [dataset.row(index) for index in range(len(dataset))]
        return {name: _shares(Recipe.load(name), rows, dataset.scalars()) for name in NAMES}


def _shares(recipe: Recipe, rows: list[Any], scalars: dict[str, Any]) -> list[dict[str, Any]]:
    step = lay_step(recipe, rows, compute(recipe, scalars))
    pull: dict[int, float] = {}
    tokens: dict[int, int] = {}
    names: dict[int, str] = {}
    for laid in step.rows:
        weights = laid.weights["ce"]
        pull[laid.rollout] = pull.get(laid.rollout, 0.0) + float((weights / laid.denominator["ce"]).sum())
        tokens[laid.rollout] = tokens.get(laid.rollout, 0) + int(np.count_nonzero(weights))
        names[laid.rollout] = str(laid.row.scalars["trace_id"])
    total = sum(pull.values())
    return [
        {"rollout": names[key], "tokens": tokens[key], "share": round(pull[key] / total, 6)}
        for key in pull
        if tokens[key]
    ]


def figure(table: dict[str, list[dict[str, Any]]]) -> tuple[dict[str, list[tuple[float, float]]], str, str, str]:
    """Arguments of figure.points."""
    series = {NAMES[name]: [(float(one["tokens"]), one["share"]) for one in rows] for name, rows in table.items()}
    return series, "ECHO: each rollout's share of the cross-entropy", "observation tokens of the rollout", "share"


def show(table: dict[str, list[dict[str, Any]]]) -> None:
    """The spread of shares, and how they follow length."""
    print("\ndenominators: share of the cross-entropy weight per rollout, bundled rollouts")
    for name, rows in table.items():
        shares = np.asarray([one["share"] for one in rows])
        lengths = np.asarray([one["tokens"] for one in rows], float)
        ratio = shares.max() / shares.min()
        together = np.corrcoef(lengths, shares)[0, 1] if shares.std() > 1e-9 else 0.0
        text = f"largest / smallest {ratio:6.1f}, correlation with its observation tokens {together:+.2f}"
        print(f"  {NAMES[name]:22s} {len(rows)} rollouts, {text}")
