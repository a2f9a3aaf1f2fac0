"""Which token a label speaks of: labels matched against ids at three shifts. Knows no rule."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracemask.check.block import Block
from tracemask.core.limits import IGNORED

DECIDED = 0.99  # share of labels that must match ids at one shift
MARGIN = 0.10  # and by how much that shift must win


@dataclass(frozen=True, slots=True)
class Convention:
    """Per row: `shift` d where labels[t] = ids[t + d] (0 or 1 or −1), 9 where none fits, and whether it is decided."""

    shift: np.ndarray
    decided: np.ndarray


def convention_of(block: Block) -> Convention | None:
    """How each row's labels stand to its ids; None without labels."""
    labels = block.labels
    if labels is None:
        return None
    ids, on = block.ids, labels != IGNORED
    shares = []
    for d in (0, 1, -1):
        same = np.zeros(len(block), dtype=bool)
        if d == 1:
            same[:-1] = labels[:-1] == ids[1:]
            same[block.offsets[1:][block.sizes > 0] - 1] = True  # the last label speaks of a token beyond the row
        elif d == -1:
            same[1:] = labels[1:] == ids[:-1]
            same[block.offsets[:-1][block.sizes > 0]] = True
        else:
            same = labels == ids
        shares.append(np.bincount(block.row_of[on & same], minlength=len(block.rows)))
    total = np.bincount(block.row_of[on], minlength=len(block.rows))
    share = np.array(shares) / np.maximum(total, 1)
    best = share.argmax(axis=0)
    top = share[best, np.arange(len(total))]
    second = np.sort(share, axis=0)[-2]
    fits = (top >= DECIDED) & ((best == 0) | (top - second >= MARGIN))
    shift = np.where(fits, np.array([0, 1, -1])[best], 9)
    few = total < 4
    shift = np.where(few & (share[0] == 1), 0, shift)
    return Convention(shift.astype(np.int8), (total > 0) & (~few | (shift == 0)))


def mask_of(block: Block, convention: Convention) -> np.ndarray:
    """mask[N] bool of a block's labels, moved to the tokens that they name."""
    labels = block.labels
    assert labels is not None
    on = labels != IGNORED
    for d in (1, -1):
        rows = convention.shift == d
        if rows.any():
            moved = np.zeros_like(on)
            if d == 1:
                moved[1:] = on[:-1] & (block.row_of[1:] == block.row_of[:-1])
            else:
                moved[:-1] = on[1:] & (block.row_of[1:] == block.row_of[:-1])
            on = np.where(rows[block.row_of], moved, on)
    return on
