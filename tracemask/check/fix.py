"""Repairs for findings that have one: rows in, repaired rows out, never in place. Knows no file format.

A safe fix removes what no trainer may use or restores what the ids prove; an unsafe one decides something for you.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracemask.check.block import Block
from tracemask.check.config import Settings
from tracemask.check.context import Run
from tracemask.check.rules.authors import environment_like
from tracemask.check.rules.openers import prefilled
from tracemask.check.rules.scores import logprob_shifted
from tracemask.check.rules.shift import tail_tokens
from tracemask.check.turns import NOWHERE
from tracemask.check.view import View
from tracemask.core.limits import IGNORED
from tracemask.core.vocab import Author
from tracemask.store.row import Row

Columns = dict[str, np.ndarray]
DROP: Columns = {}  # a repair that is to leave the row out


@dataclass(frozen=True, slots=True)
class Fix:
    """One repair: the columns it changes in a row, DROP, or None where there is nothing to do."""

    code: str
    safe: bool
    what: str
    repair: Callable[[View], Columns | None]


@dataclass(frozen=True, slots=True)
class Change:
    """What a repair did to one row: the first changed token and how many changed. column "": the row is left out."""

    code: str
    row: int
    column: str
    token: int | None
    tokens: int

    def __str__(self) -> str:
        if not self.column:
            return f"row {self.row}: left out ({self.code})"
        return f"row {self.row}: {self.column}, {self.tokens} tokens from token {self.token} ({self.code})"


def target(view: View) -> str:
    """The column that says what is trained."""
    return next(name for name in ("sampled", "mask", "labels") if name in view.block.names)


def with_mask(view: View, mask: np.ndarray) -> Columns | None:
    """The trained column as `mask`[T] says, None where it is so already."""
    assert view.mask is not None
    if (mask == view.mask).all():
        return None
    name = target(view)
    column = view.block.column(name, neutral=IGNORED if name == "labels" else 0)
    assert column is not None
    if name == "labels":
        return {name: np.where(mask, view.block.ids, IGNORED).astype(column.dtype)}
    return {name: np.where(mask, np.maximum(column, 1), 0).astype(column.dtype)}


def _extend_stops(view: View) -> Columns | None:
    votes = view.votes
    missed = (votes.tail == -1) & ((votes.head == 0) | (votes.head == NOWHERE)) & ~votes.touches
    if view.stored_authors and len(votes.end):
        missed &= view.policy[np.minimum(votes.end, len(view.block) - 1)]
    mask = view.mask.copy()  # type: ignore[union-attr]
    mask[votes.end[missed]] = True
    return with_mask(view, mask)


def _extend_starts(view: View) -> Columns | None:
    votes = view.votes
    missed = (votes.head == 1) & (votes.tail == 0) & ~votes.touches
    mask = view.mask.copy()  # type: ignore[union-attr]
    mask[votes.start[missed] - 1] = True
    return with_mask(view, mask)


def _without(flags: Callable[[View], np.ndarray]) -> Callable[[View], Columns | None]:
    """A repair that takes flagged tokens out of the mask."""

    def repair(view: View) -> Columns | None:
        return with_mask(view, view.mask & ~flags(view))  # type: ignore[operator]

    return repair


def _hidden(view: View) -> np.ndarray:
    attention = view.block.column("attention_mask", neutral=1)
    return np.zeros(len(view.block), dtype=bool) if attention is None else attention == 0


def _others(view: View) -> np.ndarray:
    assert view.author is not None
    return (view.author != Author.POLICY) & view.known & ~environment_like(view.author)


def _first(view: View) -> np.ndarray:
    return np.arange(len(view.block)) == 0


def _first_weights(view: View) -> Columns | None:
    out = with_mask(view, view.mask & ~_first(view)) or {}  # type: ignore[operator]
    for name, stream in view.block.weights.items():
        if np.nan_to_num(stream[0]) != 0:
            changed = stream.copy()
            changed[0] = 0
            out[f"weight.{name}"] = changed
    return out or None


def _stray_logprobs(view: View) -> Columns | None:
    values = view.block.logprob
    assert values is not None
    stray = ~np.isnan(values) & ~view.trained
    if view.stored_authors:
        stray &= ~view.policy
    return {"logprob": np.where(stray, np.nan, values).astype(values.dtype)} if stray.any() else None


def _moved(values: np.ndarray, d: int, fill: Any) -> np.ndarray:
    """values[t] to t + d."""
    out = np.full_like(values, fill)
    if d > 0:
        out[d:] = values[:-d]
    else:
        out[:d] = values[-d:]
    return out


def _shift_mask(view: View) -> Columns | None:
    d = int(view.shift[0])
    return with_mask(view, _moved(view.mask, -d, False)) if d and view.mask is not None else None


def _shift_labels(view: View) -> Columns | None:
    convention, labels = view.convention, view.block.labels
    assert convention is not None and labels is not None
    d = int(convention.shift[0])
    return {"labels": _moved(labels, d, IGNORED)} if d in (1, -1) else None


def _shift_logprobs(view: View) -> Columns | None:
    found = list(logprob_shifted.check(view))
    values = view.block.logprob
    if not found or values is None:
        return None
    d = int(found[0].data["shift"])  # type: ignore[arg-type]
    places = np.flatnonzero(view.trained & np.isfinite(values))
    moved = values.copy()
    moved[places] = np.nan
    to = np.arange(len(places)) - d
    inside = (to >= 0) & (to < len(places))
    moved[places[to[inside]]] = values[places[inside]]
    return {"logprob": moved}


def _drop(view: View) -> Columns | None:
    return DROP


FIXES: tuple[Fix, ...] = (
    Fix("TM312", True, "take padding out of the mask", _without(lambda view: view.padding)),
    Fix("TM314", True, "take hidden tokens out of the mask", _without(_hidden)),
    Fix("TM303", True, "move labels to the tokens they name", _shift_labels),
    Fix("TM302", False, "move the mask back", _shift_mask),
    Fix("TM305", True, "take the stop into the mask", _extend_stops),
    Fix("TM309", False, "take the first token into the mask", _extend_starts),
    Fix("TM310", True, "take the template's white space out of the mask", _without(tail_tokens)),
    Fix("TM106", True, "take the prefill out of the mask", _without(prefilled)),
    Fix("TM306", True, "take the environment out of the mask", _without(lambda view: environment_like(view.author))),  # type: ignore[arg-type]
    Fix("TM307", True, "take prompts and headers out of the mask", _without(_others)),
    Fix("TM604", True, "take the first token out of the loss", _first_weights),
    Fix("TM401", True, "remove log-probs outside the mask", _stray_logprobs),
    Fix("TM402", False, "move log-probs back", _shift_logprobs),
    Fix("TM301", False, "leave out rows without loss", _drop),
    Fix("TM502", False, "leave out repeated rows", _drop),
)


def chosen(codes: Iterable[str], *, unsafe: bool) -> list[Fix]:
    """The repairs for `codes` (all, if none are given); unsafe ones only on request."""
    wanted = set(codes)
    return [fix for fix in FIXES if (not wanted or fix.code in wanted) and (fix.safe or unsafe)]


class Fixer:
    """Repairs rows by what a report found in them. The report must have kept every finding (Settings.examples)."""

    def __init__(self, report: Any, run: Run, fixes: list[Fix]) -> None:
        self.run = run
        self.changes: list[Change] = []
        codes = {fix.code for fix in fixes}
        self.fixes = fixes
        self._rows: dict[int, set[str]] = {}
        for finding in report.findings:
            if finding.code in codes and finding.place.row is not None:
                self._rows.setdefault(finding.place.row, set()).add(finding.code)

    def __call__(self, row: Row) -> Row | None:
        """The repaired row, the row itself, or None where it is to be left out."""
        wanted = self._rows.get(row.index, set())
        for fix in self.fixes:
            if fix.code not in wanted:
                continue
            changed = fix.repair(View(Block([row]), self.run))
            if changed is None:
                continue
            if changed is DROP:
                self.changes.append(Change(fix.code, row.index, "", None, 0))
                return None
            self.changes += differences(fix.code, row, changed)
            row = self._merged(row, changed)
        return row

    def _merged(self, row: Row, changed: Mapping[str, np.ndarray]) -> Row:
        scalars = dict(row.scalars)
        if "sampled" in changed and "n_sampled" in scalars:
            scalars["n_sampled"] = int(changed["sampled"].sum())
        return replace(row, columns={**row.columns, **changed}, scalars=scalars)


def differences(code: str, row: Row, changed: Mapping[str, np.ndarray]) -> Iterator[Change]:
    """One change per column: where it begins and how many tokens differ."""
    for name, values in changed.items():
        before = row.columns[name]
        same = (before == values) | ((before != before) & (values != values))
        places = np.flatnonzero(~same)
        if len(places):
            yield Change(code, row.index, name, int(places[0]), len(places))


def fix_dataset(
    dataset: Any, *, tokenizer: Any = None, template: Any = None, settings: Settings | None = None,
    codes: Iterable[str] = (), unsafe: bool = False,
) -> Fixer:  # fmt: skip
    """Checks `dataset` for what has a repair and returns the Fixer that makes it; nothing is written."""
    from tracemask.check.runner import Session, check_dataset

    fixes = chosen(codes, unsafe=unsafe)
    base = replace(settings or Settings(), select=tuple(fix.code for fix in fixes), examples=1 << 40, baseline=None)
    report = check_dataset(dataset, tokenizer=tokenizer, template=template, settings=base)
    session = Session(base, tokenizer=tokenizer, template=template)
    session.start(dataset)
    return Fixer(report, session.run, fixes)
