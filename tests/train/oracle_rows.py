"""Hostile rows for the oracle, and each row as the papers' formulas see it: alone, through transformers' own attention.

Ragged rows, forks, rollouts of several rows, uniform groups, groups of one, cut rollouts, rows in which nothing was
sampled, temperatures, ratios far from 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from train_models import VOCAB, row_of

from tracemask.core.vocab import Author
from tracemask.store.row import Row

ENV, POL, TASK = int(Author.ENVIRONMENT), int(Author.POLICY), int(Author.TASKSET)


def wild_rows(seed: int, *, old: bool, spread: float) -> list[Row]:
    """Six groups: usual, usual, uniform rewards, a group of one, one with a cut rollout, one row without a sample."""
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for group, size in enumerate((4, 3, 3, 1, 3, 3)):
        prompt = rng.integers(0, VOCAB, int(rng.integers(1, 9)))
        for attempt in range(size):
            lengths = [int(rng.integers(1, 14)), int(rng.integers(0, 5)), int(rng.integers(1, 8))]
            authors = [TASK] * len(prompt) + [POL] * lengths[0] + [ENV] * lengths[1] + [POL] * lengths[2]
            if group == 5 and attempt == 0:
                authors = [TASK] * len(prompt) + [ENV] * (sum(lengths))
            author = np.array(authors, np.uint8)
            ids = np.concatenate([prompt, rng.integers(0, VOCAB, sum(lengths))])
            reward = 1.0 if group == 2 else round(float(rng.random() < 0.5) + 0.25 * float(rng.integers(0, 3)), 2)
            facts = {"trace_id": f"g{group}a{attempt}", "group_id": f"g{group}", "reward": reward, "branch": 0}
            facts |= {"truncated": group == 4 and attempt == 0, "n_turns": 2, "agent": f"p{attempt % 2}"}
            rows.append(row_of(len(rows), ids, author, author == POL, rng, facts))
            if attempt == 1:
                tail = int(rng.integers(1, 6))
                at = len(ids) - lengths[2]
                own = np.r_[np.zeros(at, bool), np.ones(tail, bool)]
                forked = np.r_[author[:at], np.full(tail, POL)].astype(np.uint8)
                facts = facts | {"branch": 1, "fork_row": 0, "fork_position": at}
                again = np.r_[ids[:at], rng.integers(0, VOCAB, tail)]
                rows.append(row_of(len(rows), again, forked, own, rng, facts))
    for row in rows:
        n, sampled = len(row), row["sampled"]
        row.columns["logprob"] = np.where(sampled, -np.abs(rng.normal(3.5, spread, n)), np.nan).astype(np.float32)
        row.columns["ref_logprob"] = np.where(sampled, -np.abs(rng.normal(3.5, 1.0, n)), np.nan).astype(np.float32)
        row.columns["temperature"] = np.where(rng.random(n) < 0.5, 1.0, 0.7).astype(np.float32)
        row.columns["value"] = rng.normal(0, 1, n).astype(np.float32)
        row.columns["advantage"] = rng.normal(0, 1, n).astype(np.float32)
        if old:
            near = np.clip(row["logprob"] + rng.normal(0, spread / 2, n), None, -0.01)
            row.columns["old_logprob"] = np.where(sampled, near, np.nan).astype(np.float32)
    return rows


@dataclass
class Seen:
    """One row as the formulas see it: float64 arrays of its tokens; lp carries the gradient, index 0 is never used."""

    rollout: str
    group: str
    reward: float
    agent: str
    truncated: bool
    lp: Tensor
    entropy: Tensor
    policy: Tensor  # sampled by the policy and owned by this row
    observed: Tensor  # tool output after the first reply, owned by this row
    old: Tensor | None
    sampler: Tensor
    ref: Tensor
    value: np.ndarray
    given: Tensor
    wrote: bool
    all_policy: np.ndarray


def see(model: Any, rows: list[Row]) -> list[Seen]:
    """Every row through transformers' own attention, alone."""
    out = []
    for row in rows:
        ids, s = torch.from_numpy(row["token_ids"].astype(np.int64)), row.scalars
        logits = model(ids[None], use_cache=False).logits[0]
        heat = torch.from_numpy(row["temperature"].astype(np.float64))
        log_p = (logits[:-1] / heat[1:, None]).log_softmax(-1)
        zero = torch.zeros(1, dtype=torch.float64)
        lp = torch.cat([zero, log_p.gather(1, ids[1:, None])[:, 0]])
        entropy = torch.cat([zero, -(log_p.exp() * log_p).sum(-1)])
        author = row["author"]
        after = np.cumsum(author == POL) > 0
        owned = np.arange(len(row)) >= (s.get("fork_position") or 0)
        real = np.arange(len(row)) > 0

        def column(name: str, row: Row = row) -> Tensor:
            return torch.from_numpy(np.nan_to_num(row[name].astype(np.float64)))

        out.append(
            Seen(
                s["trace_id"],
                s["group_id"],
                s["reward"],
                s["agent"],
                s["truncated"],
                lp,
                entropy,
                torch.from_numpy(row["sampled"] & real),
                torch.from_numpy((author == ENV) & after & owned & real),
                column("old_logprob") if "old_logprob" in row.columns else None,
                column("logprob"),
                column("ref_logprob"),
                row["value"].astype(np.float64),
                column("advantage"),
                bool((author == POL).any()),
                author == POL,
            )
        )
    return out
