"""Puts samples side by side into token budgets, and cuts them column by column. Knows no weight and no model.

Deterministic best fit, longest first; no sample is split, none is dropped silently.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracemask.core.errors import StoreError
from tracemask.core.finding import Finding, Place
from tracemask.store.choice import Choice
from tracemask.store.foreign_names import COMPLETION_IDS, PROMPT_IDS
from tracemask.store.row import Row

PACKING_VERSION = "best-fit-1"


class Overlong(Choice):
    """What becomes of a sample that is longer than the budget."""

    ERROR = "error"
    TRUNCATE = "truncate"  # from the tail
    SKIP = "skip"


class Side(Choice):
    """Where a cut takes tokens away."""

    TAIL = "tail"
    HEAD = "head"


@dataclass(slots=True)
class Packing:
    """Which samples share a pack. bins: sample numbers, each list in ascending order, lists by their first sample.

    lengths: tokens each sample takes (int64; after truncation, 0 where skipped). truncated, skipped: sample numbers.
    lost_tokens: tokens cut or skipped. findings: one TM602 for each sample longer than the budget.
    """

    budget: int
    bins: list[list[int]]
    lengths: np.ndarray
    truncated: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    lost_tokens: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def efficiency(self) -> float:
        """Share of the budgets that is filled."""
        return float(self.lengths.sum()) / (self.budget * len(self.bins)) if self.bins else 0.0


def pack(lengths: Sequence[int] | np.ndarray, budget: int, *, overlong: Overlong | str = Overlong.ERROR) -> Packing:
    """Best fit, longest first, ties by sample number: each sample goes where the least room would remain.

    Raises StoreError TM602 on a sample longer than `budget` unless told to truncate or skip.
    """
    policy = Overlong(overlong)
    if budget < 1:
        raise StoreError("TM900", what=f"a budget of {budget} tokens", fix="give a positive budget")
    sizes = np.array(lengths, dtype=np.int64).reshape(-1)
    if sizes.min(initial=0) < 0:
        what = f"sample {int(np.argmin(sizes))} of {int(sizes.min())} tokens"
        raise StoreError("TM900", what=what, fix="give lengths of 0 or more")
    out = Packing(budget, [], sizes)
    _admit(out, policy)
    skipped = set(out.skipped)
    order = [int(i) for i in np.lexsort((np.arange(len(sizes)), -sizes)) if int(i) not in skipped]
    spaces: list[tuple[int, int]] = []  # (room left, bin), ascending
    bins: list[list[int]] = []
    for sample in order:
        size = int(sizes[sample])
        at = bisect.bisect_left(spaces, (size, -1))
        if at == len(spaces):
            bins.append([sample])
            bisect.insort(spaces, (budget - size, len(bins) - 1))
        else:
            room, k = spaces.pop(at)
            bins[k].append(sample)
            bisect.insort(spaces, (room - size, k))
    out.bins = sorted(sorted(bin_) for bin_ in bins)
    return out


def _admit(out: Packing, policy: Overlong) -> None:
    """Applies the policy to every over-long sample of `out`."""
    for sample in np.flatnonzero(out.lengths > out.budget).tolist():
        size = int(out.lengths[sample])
        what = f"sample of {size} tokens is longer than the budget of {out.budget}"
        if policy is Overlong.ERROR:
            fix = "raise the token budget, or choose truncate or skip"
            raise StoreError("TM602", where=f"sample {sample}", what=what, fix=fix)
        out.findings.append(Finding("TM602", f"{what}: {policy.value}", Place(row=sample)))
        out.lost_tokens += size - (out.budget if policy is Overlong.TRUNCATE else 0)
        out.lengths[sample] = out.budget if policy is Overlong.TRUNCATE else 0
        (out.truncated if policy is Overlong.TRUNCATE else out.skipped).append(sample)


def cu_seqlens(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Where each sample of a pack starts, and the end: int32 [n + 1]."""
    return np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))]).astype(np.int32)


def positions(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Position ids that restart at 0 with each sample: int32 [S]."""
    sizes = np.asarray(lengths, dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])[:-1]
    return (np.arange(int(sizes.sum())) - np.repeat(starts, sizes)).astype(np.int32)


def cut(row: Row, length: int, *, side: Side | str = Side.TAIL) -> Row:
    """`row` with at most `length` tokens, every per-token column cut alike.

    side TAIL keeps the first tokens and marks the row truncated: its end is no longer the rollout's end. side HEAD
    keeps the last ones; the first of them has no context any more and must not be trained. Counts and places that the
    row states follow: n_tokens, n_sampled, n_turns, fork_position, drifts. Prompt and completion ids that a foreign row
    has beside its ids are left out. StoreError TM101 where the columns' lengths differ: a cut would misalign them.
    """
    total = len(row)
    if length < 0:
        raise StoreError("TM900", where=f"row {row.index}", what=f"a cut to {length} tokens", fix="give 0 or more")
    per_token = {name: values for name, values in row.columns.items() if name not in (*PROMPT_IDS, *COMPLETION_IDS)}
    for name, values in per_token.items():
        if len(values) != total:
            what = f"column {name!r} has {len(values)} entries for {total} ids"
            raise StoreError("TM101", where=f"row {row.index}", what=what, fix="repair the row before cutting it")
    if length >= total:
        return row
    kept = slice(0, length) if Side(side) is Side.TAIL else slice(total - length, total)
    columns = {name: values[kept] for name, values in per_token.items()}
    scalars = {**row.scalars, "n_tokens": length, **_moved(row, columns, kept.start, kept.stop)}
    if Side(side) is Side.TAIL:
        scalars["truncated"] = True
    return Row(row.index, columns, scalars)


def _moved(row: Row, columns: dict[str, np.ndarray], start: int, stop: int) -> dict[str, Any]:
    """The scalars of `row` that speak of its tokens, for its tokens [start, stop) alone."""
    out: dict[str, Any] = {}
    if (sampled := columns.get("sampled")) is not None:
        out["n_sampled"] = int(np.count_nonzero(sampled))
        if "message" in columns and "n_turns" in row.scalars:
            out["n_turns"] = len(np.unique(columns["message"][sampled]))
    if (fork := row.scalars.get("fork_position")) is not None:
        out["fork_position"] = min(max(fork, start), stop) - start
    if (drifts := row.scalars.get("drifts")) is not None:
        out["drifts"] = [{**one, "token": one["token"] - start} for one in drifts if start <= one["token"] < stop]
        out["drift"] = len(out["drifts"])
    return out


@dataclass(frozen=True, slots=True)
class Pack:
    """Samples side by side. columns: each [S], concatenated; rows: number of each sample in its dataset."""

    columns: dict[str, np.ndarray]
    cu_seqlens: np.ndarray
    positions: np.ndarray
    rows: list[int]


def join(rows: Sequence[Row], columns: Sequence[str] | None = None) -> Pack:
    """The rows as one pack. columns: default those that every row has.

    A float column that a row lacks is NaN there; any other absent column is StoreError TM501.
    """
    if columns is None:
        columns = [name for name in rows[0].columns if all(name in row.columns for row in rows)] if rows else []
    joined: dict[str, np.ndarray] = {}
    for name in columns:
        parts = [row.get(name) for row in rows]
        kind = next((part.dtype for part in parts if part is not None), None)
        if kind is None or (kind.kind != "f" and any(part is None for part in parts)):
            absent = next(row.index for row, part in zip(rows, parts, strict=True) if part is None)
            what = f"row {absent} has no column {name!r}"
            raise StoreError("TM501", where=f"row {absent}", what=what, fix="choose columns that every row has")
        filled = [np.full(len(row), np.nan, dtype=kind) if part is None else part
                  for row, part in zip(rows, parts, strict=True)]  # fmt: skip
        joined[name] = np.concatenate(filled)
    sizes = [len(row) for row in rows]
    return Pack(joined, cu_seqlens(sizes), positions(sizes), [row.index for row in rows])
