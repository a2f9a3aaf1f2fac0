"""Rows built by hand from (author, role, part, count) runs, and the naive arithmetic they are held against."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from tracemask.core.vocab import Author, Part, Role
from tracemask.store.row import Row

Run = tuple[str, str, str, int]

PROMPT: Run = ("taskset", "user", "content", 3)


def reply(n: int) -> Run:
    """n tokens that the policy sampled."""
    return ("policy", "assistant", "content", n)


def tool(n: int) -> Run:
    """n tokens of tool output."""
    return ("environment", "tool", "tool_output", n)


def make_row(
    index: int, runs: Sequence[Run], *, columns: dict[str, np.ndarray] | None = None, **scalars: object
) -> Row:
    """One row; policy tokens are sampled, owned and have log-prob −0.5. Each run is a message of its own."""
    author = np.concatenate([np.full(n, int(Author.of(who)), np.uint8) for who, _, _, n in runs])
    role = np.concatenate([np.full(n, int(Role.of(slot)), np.uint8) for _, slot, _, n in runs])
    part = np.concatenate([np.full(n, int(Part.of(what)), np.uint8) for _, _, what, n in runs])
    message = np.concatenate([np.full(run[3], number, np.int32) for number, run in enumerate(runs)])
    sampled = author == int(Author.POLICY)
    own = {
        "token_ids": np.arange(len(author), dtype=np.int32),
        "author": author,
        "role": role,
        "part": part,
        "message": message,
        "sampled": sampled,
        "logprob": np.where(sampled, -0.5, np.nan).astype(np.float32),
    }
    facts: dict[str, object] = {"trace_id": f"t{index}", "group_id": "g", "fidelity": "exact", "trainable": True}
    return Row(index, own | (columns or {}), facts | scalars)


def lengths(*counts: int) -> list[Row]:
    """One rollout per count, prompt of three tokens first, all in one group."""
    return [make_row(index, [PROMPT, reply(n)]) for index, n in enumerate(counts)]


def naive_denominators(
    normalizer: str, counts: Sequence[int], groups: Sequence[int], l_max: int, *, leave_out: bool = False
) -> list[Fraction]:
    """1/Z of each rollout as an exact fraction, written from the formulas alone; counts[i] tokens of rollout i."""
    n = len(counts)
    if normalizer == "token_mean":
        return [Fraction(1, sum(counts)) for _ in counts]
    if normalizer == "sequence_mean":
        n = sum(1 for count in counts if count) if leave_out else n
        return [Fraction(1, n) * Fraction(1, count) if count else Fraction(0) for count in counts]
    if normalizer == "constant":
        return [Fraction(1, n * l_max) for _ in counts]
    if normalizer == "sum_per_rollout":
        return [Fraction(1, n) for _ in counts]
    if normalizer == "prompt_mean":
        per_group = {g: sum(c for c, of in zip(counts, groups, strict=True) if of == g) for g in groups}
        return [Fraction(1, len(per_group) * per_group[g]) if per_group[g] else Fraction(0) for g in groups]
    assert normalizer == "sum"
    return [Fraction(1) for _ in counts]
