"""Padding: runs of one id at the edges of rows, by name, by the attention mask, or by repetition. Knows no rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tracemask.check.block import Block

if TYPE_CHECKING:
    from tracemask.check.view import View

THRICE = 3  # equal special ids at an edge: a pad, though nobody declared it


def hidden_by_attention(block: Block) -> np.ndarray | None:
    """hidden[N] bool: the attention mask is 0; None without one."""
    attention = block.column("attention_mask", neutral=1)
    return None if attention is None else attention == 0


def padding_of(view: View) -> np.ndarray:
    """padding[N] bool. A stop that begins the trailing run is text: the turn ends with it."""
    block = view.block
    flags = np.zeros(len(block), dtype=bool)
    if view.run.lens is None or not len(block):
        return flags
    hidden = hidden_by_attention(block)
    dark = np.zeros(len(block), dtype=bool) if hidden is None else hidden
    for row in _padded_rows(view, dark).tolist():
        begin, end = int(block.offsets[row]), int(block.offsets[row + 1])
        ids, dim = block.ids[begin:end], dark[begin:end]
        lead = _run(view, ids, dim)
        if lead == len(ids):
            flags[begin:end] = True
            continue
        if lead and ids[0] == view.lens.bos and not dim[0]:
            lead -= 1  # the last of them begins the text
        flags[begin : begin + lead] = True
        trail = _run(view, ids[::-1], dim[::-1])
        start = end - trail
        flags[start + int(trail > 0 and _is_stop(view, start, dark)) : end] = True
    return flags


def _padded_rows(view: View, dark: np.ndarray) -> np.ndarray:
    """The rows that may have padding: judged by their first and last ids alone."""
    block = view.block
    filled = np.flatnonzero(block.sizes)
    first, last = block.offsets[:-1][filled], block.offsets[1:][filled] - 1
    special = view.lens.special[view.safe]
    maybe = dark | special | np.isin(block.ids, list(view.lens.pads))
    return filled[maybe[first] | maybe[last]]


def _run(view: View, ids: np.ndarray, dim: np.ndarray) -> int:
    """How many leading `ids` are one pad."""
    token = int(ids[0])
    other = np.flatnonzero(ids != token)
    same = int(other[0]) if len(other) else len(ids)
    if dim[0]:
        seen = np.flatnonzero(~dim)
        return min(same, int(seen[0])) if len(seen) else same
    special = 0 <= token < view.lens.size and bool(view.lens.special[token])
    return same if token in view.lens.pads or (special and same >= THRICE) else 0


def _is_stop(view: View, at: int, dark: np.ndarray) -> bool:
    """The first id of a trailing run ends the turn: a stop that is seen or trained, or what the row ends turns with."""
    trained = view.mask is not None and bool(view.mask[at])
    if view.ends_turns(int(view.block.ids[at])):
        return trained or not dark[at]
    if dark[at] or not trained or bool(view.mask[at + 1 : at + 2].any()):  # type: ignore[index]
        return False
    before = int(view.block.ids[at - 1])  # text in front of it: see TM315
    return not view.ends_turns(before) and before not in view.lens.tokenizer.added
