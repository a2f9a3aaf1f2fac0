"""Where packed documents begin, by every column that says so. Knows no rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracemask.check.block import Block
from tracemask.store.row import Row

LENGTHS = ("seq_lengths", "seq_lens", "sequence_lengths", "document_lengths")
CUMULATIVE = ("cu_seqlens", "cu_seq_lens", "cu_seq_lens_q", "cu_seqlens_q")
NUMBERS = ("seq_idx", "sequence_ids", "segment_ids", "document_ids")


@dataclass(frozen=True, slots=True)
class Boundaries:
    """fresh[N]: a document begins, as any column says. disagree[N]: and another column says that none does.

    stated[R]: rows with such a column. broken: rows whose lengths are none, with the reason.
    """

    fresh: np.ndarray
    disagree: np.ndarray
    stated: np.ndarray
    broken: list[tuple[int, str]]


def states_documents(block: Block) -> bool:
    """Whether any column of the block says where documents begin."""
    names = {name for row in block.rows for name in row.columns}
    attention = block.column("attention_mask", neutral=0)
    numbered = attention is not None and bool((attention > 1).any())
    return numbered or bool(names & {"position_ids", *LENGTHS, *CUMULATIVE, *NUMBERS})


def boundaries(block: Block, seen: np.ndarray) -> Boundaries:
    """The documents of a block's rows. seen[N] bool: tokens that are no padding; others begin none."""
    fresh, disagree = np.zeros(len(block), dtype=bool), np.zeros(len(block), dtype=bool)
    stated, broken = np.zeros(len(block.rows), dtype=bool), []
    for i, row in enumerate(block.rows):
        begin, end = int(block.offsets[i]), int(block.offsets[i + 1])
        if begin == end:
            continue
        said: list[np.ndarray] = []
        for name, starts in _said(row, end - begin):
            if isinstance(starts, str):
                broken.append((i, f"{name} {starts}"))
            else:
                said.append(starts)
        if said:
            stated[i] = True
            fresh[begin:end] = np.logical_or.reduce(said)
            disagree[begin:end] = fresh[begin:end] & ~np.logical_and.reduce(said)
    return Boundaries(fresh & seen, disagree & seen, stated, broken)


def _said(row: Row, n: int) -> Iterator[tuple[str, np.ndarray | str]]:
    """Per column: bool[n] of first tokens, or why it says nothing."""
    for name in NUMBERS:
        if name in row.columns and len(row.columns[name]) == n:
            yield name, _changes(row.columns[name])
    attention = row.columns.get("attention_mask")
    if attention is not None and len(attention) == n and attention.max(initial=0) > 1:
        yield "attention_mask", _changes(attention)
    if "position_ids" in row.columns:
        yield "position_ids", np.asarray(row.columns["position_ids"]) == 0
    for name in (*LENGTHS, *CUMULATIVE):
        if name in row.columns:
            given = np.asarray(row.columns[name])
            edges = np.concatenate([[0], np.cumsum(given)]) if name in LENGTHS else given
            yield name, _starts(edges, n)


def _changes(numbers: np.ndarray) -> np.ndarray:
    return np.concatenate([[True], numbers[1:] != numbers[:-1]])


def _starts(edges: np.ndarray, n: int) -> np.ndarray | str:
    """bool[n] of the documents [edges[k], edges[k + 1])."""
    if not len(edges) or edges[0] != 0 or edges[-1] != n or (np.diff(edges) < 0).any():
        last = edges[-1] if len(edges) else 0
        return f"ends at token {last}, the row has {n}" if len(edges) and edges[-1] != n else "does not rise from 0"
    out = np.zeros(n, dtype=bool)
    inside = edges[(edges >= 0) & (edges < n)].astype(np.int64)
    out[inside] = True
    return out
