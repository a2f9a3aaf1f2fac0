"""Rules about stored log-probs that need no model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracemask.check.finding import ERROR, WARNING, Finding
from tracemask.check.rule import Need, rule
from tracemask.check.view import View
from tracemask.core.limits import LOGPROB_CEILING

PLACEHOLDER = 0.95  # share of a row's log-probs that are one constant
LEAST = 16


def with_logprobs(view: View) -> np.ndarray:
    """bool[N]: tokens of rows that have any log-prob; a row without any has none missing."""
    values = view.block.logprob
    assert values is not None
    rows = np.bincount(view.block.row_of[~np.isnan(values)], minlength=len(view.block.rows)) > 0
    return rows[view.block.row_of]


def _stray(view: View) -> np.ndarray:
    """bool[N]: a log-prob on a token outside the mask. Zeros fill gaps in other tools' data and are none."""
    values = view.block.logprob
    assert values is not None
    there = ~np.isnan(values) & ~view.trained
    if not view.run.ours:
        there &= values != 0
    if view.stored_authors:
        there &= ~view.policy
    return there


@rule("TM401", "logprob-support-mismatch", ERROR, needs=(Need.MASK, Need.LOGPROBS))
def support_mismatch(view: View) -> Iterator[Finding]:
    """Log-probs stand on other tokens than the mask.

    **What it does.** In rows that have log-probs at all, looks for log-probs on tokens outside the mask (copies of the
    policy's own tokens excepted, and zeros in other tools' data, which fill gaps).

    **Why it is bad.** The two columns were cut or shifted differently; every ratio is taken between the new log-prob
    of one token and the old log-prob of another.

    **Example.** Log-probs of a whole response, tool output included, beside a mask of the policy's tokens.

    **How to fix.** Write both columns from one loop; NaN where no log-prob exists.

    **Limits.** A trained token without a log-prob, where none lies elsewhere, is TM404. A row that trains nothing is
    TM301.
    """
    trains = np.bincount(view.block.row_of[view.trained], minlength=len(view.block.rows)) > 0  # else it is TM301
    stray = _stray(view) & (trains & ~view.upset)[view.block.row_of]
    places = np.flatnonzero(stray)
    if not len(places):
        return
    values = view.block.logprob
    assert values is not None
    missing = np.bincount(view.block.row_of[view.trained & np.isnan(values)], minlength=len(view.block.rows))
    for row, token, count in view.block.first_per_row(places):
        many = "s" if count > 1 else ""
        text = f"{count} log-prob{many} outside the mask, {int(missing[row])} trained tokens without one"
        yield view.block.finding("TM401", row, text, token=token, stray=count, missing=int(missing[row]))


@rule("TM404", "logprob-invalid", ERROR, needs=(Need.MASK, Need.LOGPROBS))
def logprob_invalid(view: View) -> Iterator[Finding]:
    """A trained token's log-prob is missing, infinite, positive, or a placeholder.

    **What it does.** On trained tokens of rows that have log-probs: NaN or null, −inf and values above 1e-4 are
    errors. Warnings: nearly all of a row's log-probs exactly 0 or exactly 1, or the stop's alone exactly 0 in every
    row while no other token's is (an appended stop that nobody sampled).

    **Why it is bad.** A placeholder of 0 claims probability 1; against the real log-prob of −3 the ratio is e⁻³, and
    the update is wrong by a factor of 20 without any NaN in sight.

    **Example.** `logprobs: [0.0, 0.0, 0.0, …]` from an engine that was not asked for them.

    **How to fix.** Leave absent log-probs absent (null or NaN): the loss then refuses instead of guessing.

    **Limits.** Near-deterministic tokens do have log-prob 0 after rounding; single zeros are not reported.
    """
    block, values = view.block, view.block.logprob
    assert values is not None
    stray = np.bincount(block.row_of[_stray(view)], minlength=len(block.rows)) > 0
    judged = view.trained & with_logprobs(view) & ~view.upset[block.row_of]
    if view.author is not None:
        judged &= view.policy  # what others wrote and is trained all the same is TM306 and TM307
    kinds = {
        "missing": np.isnan(values) & ~stray[block.row_of],
        "infinite": np.isinf(values),
        "positive": (values > LOGPROB_CEILING) & (values != 1) & np.isfinite(values),
    }
    for cause, flags in kinds.items():
        places = np.flatnonzero(judged & flags)
        if len(places):
            yield from block.each("TM404", places, f"{cause} log-prob on {{n}} trained token{{s}}", cause=cause)
    yield from _placeholders(view, judged)


def _placeholders(view: View, judged: np.ndarray) -> Iterator[Finding]:
    block, values = view.block, view.block.logprob
    assert values is not None
    total = np.bincount(block.row_of[judged], minlength=len(block.rows))
    for constant in (0.0, 1.0):
        hit = judged & (values == constant)
        count = np.bincount(block.row_of[hit], minlength=len(block.rows))
        rows = (total >= LEAST) & (count >= PLACEHOLDER * total)
        some = hit & rows[block.row_of]
        text = f"{{n}} trained log-probs are exactly {constant:g}: a placeholder"
        for finding in block.each("TM404", np.flatnonzero(some), text, cause=f"placeholder {constant:g}"):
            yield _as_warning(finding)
        if constant == 1.0:
            lone = np.flatnonzero(hit & ~rows[block.row_of])
            yield from block.each("TM404", lone, "positive log-prob on {n} trained token{s}", cause="positive")


def _as_warning(finding: Finding) -> Finding:
    return Finding(finding.code, finding.message, finding.place, WARNING, finding.cause, finding.data)
