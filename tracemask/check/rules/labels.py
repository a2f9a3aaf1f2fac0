"""Rules about labels: which token a label speaks of, and whether it names that token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracemask.check.finding import ERROR, Finding
from tracemask.check.rule import Need, rule
from tracemask.check.view import View
from tracemask.core.limits import IGNORED


@rule("TM303", "label-convention", ERROR, needs=(Need.IDS, Need.LABELS))
def label_convention(view: View) -> Iterator[Finding]:
    """Labels are shifted in the data, and most trainers shift them again.

    **What it does.** Matches labels with ids at shifts −1, 0 and +1; a shift is decided where 99 % match and it wins by
    a tenth. `labels[t] = ids[t]` is what transformers, TRL and axolotl expect; `labels[t] = ids[t + 1]` is pre-shifted.

    **Why it is bad.** Shifted twice, the model is trained to predict the token after the next.

    **Example.** `labels = ids[1:] + [-100]`, then a model that computes `logits[:-1]` against `labels[1:]`.

    **How to fix.** `tracemask fix` moves them back. If your trainer wants pre-shifted labels: `--pre-shifted`.

    **Limits.** Rows with fewer than four labels, or where neighbours are equal, are not decided.
    """
    convention = view.convention
    assert convention is not None
    if view.run.options.pre_shifted:
        wrong = convention.decided & (convention.shift == 0) & _enough(view)
    else:
        wrong = convention.decided & (np.abs(convention.shift) == 1)
    for row in np.flatnonzero(wrong).tolist():
        shift = int(convention.shift[row])
        labels = view.block.labels
        assert labels is not None
        begin, end = int(view.block.offsets[row]), int(view.block.offsets[row + 1])
        token = int(np.argmax(labels[begin:end] != IGNORED))
        text = f"labels[t] names token t{shift:+d}" if shift else "labels[t] names token t, not t + 1"
        yield view.block.finding("TM303", row, text, token=token, cause=f"shift {shift:+d}" if shift else "not shifted")


def _enough(view: View) -> np.ndarray:
    labels = view.block.labels
    assert labels is not None
    return np.bincount(view.block.row_of[labels != IGNORED], minlength=len(view.block.rows)) >= 4


@rule("TM304", "labels-do-not-match-ids", ERROR, needs=(Need.IDS, Need.LABELS))
def labels_match(view: View) -> Iterator[Finding]:
    """A label is neither −100 nor the id that it should be.

    **What it does.** With the row's convention known, compares every label with its token; where no shift fits at all,
    reports the row as a whole.

    **Why it is bad.** The model is trained towards a token that does not stand there.

    **Example.** Labels of the untruncated text beside truncated ids; labels that survived a shuffle of another column.

    **How to fix.** Make labels from the ids: `labels = where(mask, ids, -100)`.

    **Limits.** Soft labels and prefix-language-model targets are not labels in this sense.
    """
    block, labels, convention = view.block, view.block.labels, view.convention
    assert labels is not None and convention is not None
    on = labels != IGNORED
    target = block.ids.copy()
    for d in (1, -1):
        rows = (convention.shift == d)[block.row_of]
        if rows.any():
            moved = np.roll(block.ids, -d)
            target = np.where(rows, moved, target)
    wrong = on & (labels != target)
    edge = (block.offsets[1:] - 1)[(convention.shift == 1) & (block.sizes > 0)]
    wrong[edge] = False
    edge = block.offsets[:-1][(convention.shift == -1) & (block.sizes > 0)]
    wrong[edge] = False
    for row, token, count in block.first_per_row(np.flatnonzero(wrong)):
        none = " at any shift" if convention.shift[row] == 9 else ""
        text = f"{count} label{'s' if count > 1 else ''} differ from the ids{none}"
        yield block.finding("TM304", row, text, token=token, tokens=count)
