"""Noncanonical tokens counted by windows: how a wrong tokenizer is told from a policy's own odd splits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracemask.check.lens import Runs

if TYPE_CHECKING:
    from tracemask.check.view import View

WINDOW = 32  # tokens
SHARE = 0.5  # of a row's windows noncanonical: nobody samples like this, another tokenizer does
LEAST = 3  # windows a row needs to be judged


def mismatched(view: View, run: Runs) -> np.ndarray:
    """bool per token of [run.start, run.end): the token is not one of the canonical split of the same bytes."""
    start, end = run.trimmed
    wrong = np.ones(run.end - run.start, dtype=bool)
    if run.canonical is None or start >= end:
        return wrong
    _, offsets = view.raw
    own = offsets[start : end + 1] - offsets[start]
    lengths = view.lens.byte_length[np.asarray(run.canonical, dtype=np.int64)]
    theirs = np.concatenate([[0], np.cumsum(lengths)])
    size = int(own[-1]) + 1
    keys = theirs[:-1] * (size + 1) + theirs[1:]
    inside = np.isin(own[:-1] * (size + 1) + own[1:], keys)
    if int(theirs[-1]) != size - 1:  # other bytes: only the common prefix of ids can be called right
        inside = np.zeros(end - start, dtype=bool)
        same = prefix(view.safe[start:end], run.canonical)
        inside[:same] = True
    wrong[start - run.start : end - run.start] = ~inside
    wrong[: start - run.start] = False
    wrong[end - run.start :] = False
    return wrong


def prefix(ids: np.ndarray, canonical: list[int]) -> int:
    """How many leading ids agree."""
    n = min(len(ids), len(canonical))
    differ = np.flatnonzero(ids[:n] != np.asarray(canonical[:n]))
    return int(differ[0]) if len(differ) else n


def wrong_rows(view: View) -> np.ndarray:
    """bool[R]: rows in which at least SHARE of at least LEAST windows hold noncanonical or impossible ids."""
    block = view.block
    bad = ~((block.ids >= 0) & (block.ids < view.lens.size))
    for run in view.drift:
        bad[run.start : run.end] |= mismatched(view, run)
    places = np.arange(len(block)) - block.offsets[:-1][block.row_of]
    first = np.concatenate([[0], np.cumsum(-(-block.sizes // WINDOW))]).astype(np.int64)
    window = first[block.row_of] + places // WINDOW
    flagged = np.zeros(int(first[-1]), dtype=bool)
    flagged[window[bad]] = True
    owner = np.repeat(np.arange(len(block.rows)), np.diff(first))
    count = np.bincount(owner, minlength=len(block.rows))
    wrong = np.bincount(owner[flagged], minlength=len(block.rows))
    return (count >= LEAST) & (wrong >= SHARE * count)
