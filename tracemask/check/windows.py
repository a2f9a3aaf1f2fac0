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
SHARE_INSIDE = 0.25  # of them noncanonical in the middle of text
EDGE = 1  # canonical tokens between a tag and a stretch that still belongs to the seam
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
        end, broken = run.end, None
        while (error := _first_error(raw, offsets, at, end)) is not None:  # a bad token may end a good character, too
            broken = broken or error
            end = int(np.searchsorted(offsets, error[0], side="right")) - 1
        if end > at:
            yield at, end
        if broken is None:
            return
        at = max(int(np.searchsorted(offsets, broken[1], side="left")), at + 1)


def _first_error(raw: bytes, offsets: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """Where the first bytes of tokens [start, end) lie that are no character; None where all are."""
    begin = int(offsets[start])
    try:
        raw[begin : int(offsets[end])].decode()
    except UnicodeDecodeError as error:
        return begin + error.start, begin + error.end
    return None


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
    """bool[R]: rows in which SHARE of at least LEAST windows hold noncanonical or impossible ids, and SHARE_INSIDE of
    them other ones than where text meets a tag, which many harnesses encode apart.

    A stretch of such ids counts in the window where it begins, and where it fills half of one.
    """
    block = view.block
    bad = ~((block.ids >= 0) & (block.ids < view.lens.size))
    inside = bad.copy()
    for run in view.drift:
        wrong = mismatched(view, run)
        bad[run.start : run.end] |= wrong
        inside[run.start : run.end] |= _apart_from_tags(view, run, wrong)
    places = np.arange(len(block)) - block.offsets[:-1][block.row_of]
    first = np.concatenate([[0], np.cumsum(-(-block.sizes // WINDOW))]).astype(np.int64)
    window = first[block.row_of] + places // WINDOW
    owner = np.repeat(np.arange(len(block.rows)), np.diff(first))
    count = np.bincount(owner, minlength=len(block.rows))

    def share(flags: np.ndarray) -> np.ndarray:
        flagged = np.bincount(window[flags], minlength=int(first[-1])) >= WINDOW // 2
        flagged[window[block.spans(flags)[0]]] = True
        return np.bincount(owner[flagged], minlength=len(block.rows)) / np.maximum(count, 1)

    return (count >= LEAST) & (share(bad) >= SHARE) & (share(inside) >= SHARE_INSIDE)


def _apart_from_tags(view: View, run: Runs, wrong: np.ndarray) -> np.ndarray:
    """`wrong` [run's tokens] without the stretch at an end of the run where a tag, or the row, begins or ends."""
    cuts = np.flatnonzero(np.diff(wrong, prepend=False, append=False))
    out = wrong.copy()
    if len(cuts) and cuts[0] <= EDGE and _tag(view, run.start, run.start - 1):
        out[: cuts[1]] = False
    if len(cuts) and cuts[-1] >= len(wrong) - EDGE and _tag(view, run.end - 1, run.end):
        out[cuts[-2] :] = False
    return out


def _tag(view: View, at: int, beside: int) -> bool:
    """What stands beside token `at` is an added token that is more than white space, or of another row."""
    block = view.block
    if not 0 <= beside < len(block) or block.row_of[at] != block.row_of[beside]:
        return True
    token = int(view.safe[beside])
    return bool(view.lens.added[token]) and bool(view.lens.text([token]).strip())
