"""Noncanonical tokens counted by windows: how a wrong tokenizer is told from a policy's own odd splits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tracemask.check.block import common_prefix
from tracemask.check.lens import Runs

if TYPE_CHECKING:
    from tracemask.check.view import View

WINDOW = 32  # tokens
SHARE = 0.5  # of a row's windows noncanonical: nobody samples like this, another tokenizer does
LEAST = 3  # windows a row needs to be judged


def mismatched(view: View, run: Runs) -> np.ndarray:
    """bool per token of [run.start, run.end): the token is not one of the canonical split of the same bytes.

    Where bytes in the middle are no character, what stands between them is compared piece by piece.
    """
    if run.canonical is not None:
        start, end = run.trimmed
        wrong = np.zeros(run.end - run.start, dtype=bool)
        wrong[start - run.start : end - run.start] = _unlike(view, start, end, run.canonical)
        return wrong
    wrong = np.ones(run.end - run.start, dtype=bool)
    raw, offsets = view.raw
    pieces = list(_whole_pieces(raw, offsets, run))
    texts = [raw[int(offsets[start]) : int(offsets[end])].decode() for start, end in pieces]
    for (start, end), canonical in zip(pieces, view.lens.encode_plain(texts), strict=True):
        wrong[start - run.start : end - run.start] = _unlike(view, start, end, canonical)
    return wrong


def _whole_pieces(raw: bytes, offsets: np.ndarray, run: Runs) -> Iterator[tuple[int, int]]:
    """The stretches of a run's tokens whose bytes are UTF-8, between tokens that hold bytes which are not."""
    at = run.start
    while at < run.end:
        begin, finish = int(offsets[at]), int(offsets[run.end])
        try:
            raw[begin:finish].decode()
        except UnicodeDecodeError as error:
            first = int(np.searchsorted(offsets, begin + error.start, side="right")) - 1
            if first > at and int(offsets[first]) <= begin + error.start:
                yield at, first
            at = max(int(np.searchsorted(offsets, begin + error.end, side="left")), first + 1)
        else:
            yield at, run.end
            return


def _unlike(view: View, start: int, end: int, canonical: list[int]) -> np.ndarray:
    """bool per token of [start, end): not one of `canonical`, which spells the same bytes or (NFC) nearly."""
    if start >= end:
        return np.zeros(0, dtype=bool)
    _, offsets = view.raw
    own = offsets[start : end + 1] - offsets[start]
    theirs = np.concatenate([[0], np.cumsum(view.lens.byte_length[np.asarray(canonical, dtype=np.int64)])])
    size = int(own[-1]) + 1
    if int(theirs[-1]) != size - 1:  # other bytes: what agrees from either end is right
        ids = view.safe[start:end]
        same = common_prefix(ids, canonical)
        back = min(common_prefix(ids[::-1], canonical[::-1]), len(ids) - same)
        return (np.arange(len(ids)) >= same) & (np.arange(len(ids)) < len(ids) - back)
    keys = theirs[:-1] * (size + 1) + theirs[1:]
    return ~np.isin(own[:-1] * (size + 1) + own[1:], keys)


def wrong_rows(view: View) -> np.ndarray:
    """bool[R]: rows in which SHARE of at least LEAST windows hold noncanonical or impossible ids.

    A stretch of such ids counts in the window where it begins, and where it fills half of one.
    """
    block = view.block
    bad = ~((block.ids >= 0) & (block.ids < view.lens.size))
    for run in view.drift:
        bad[run.start : run.end] |= mismatched(view, run)
    places = np.arange(len(block)) - block.offsets[:-1][block.row_of]
    first = np.concatenate([[0], np.cumsum(-(-block.sizes // WINDOW))]).astype(np.int64)
    window = first[block.row_of] + places // WINDOW
    flagged = np.bincount(window[bad], minlength=int(first[-1])) >= WINDOW // 2
    flagged[window[block.spans(bad)[0]]] = True
    owner = np.repeat(np.arange(len(block.rows)), np.diff(first))
    count = np.bincount(owner, minlength=len(block.rows))
    wrong = np.bincount(owner[flagged], minlength=len(block.rows))
    return (count >= LEAST) & (wrong >= SHARE * count)
