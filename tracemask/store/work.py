"""One range of a conversion: units of logs in, one committed shard out. Knows no other range and no engine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracemask.core.errors import StoreError, TracemaskError
from tracemask.store.folder import open_folder
from tracemask.store.manifest import Notes, Receipt, Skip
from tracemask.store.plan import Range
from tracemask.store.render_config import RenderConfig
from tracemask.store.row import Row
from tracemask.store.rows import of_sample
from tracemask.store.writer import ShardWriter
from tracemask.trace.authors import AuthorRules
from tracemask.trace.invariants import findings
from tracemask.trace.reading import OnError, Unit, read_units

Tell = Callable[[int], None]
_VOCABULARY_PADDING = 1024  # models pad their embedding by less; an id in the padding is for check to judge (TM201)
_RENDER_AT_ONCE = 32  # traces whose runs are encoded in one batch


@dataclass(frozen=True, slots=True)
class Work:
    """Everything that a range needs besides itself; picklable."""

    out: str
    plan: str
    render: RenderConfig
    metadata: dict[str, Any]
    on_error: OnError = "skip"
    authors: AuthorRules | None = None
    strict: bool = False


def convert_range(work: Work, span: Range, tell: Tell | None = None) -> Receipt:
    """Renders the units of one range into one committed shard; returns its receipt.

    Pure: the same work and range give the same bytes in any process, on any machine. tell: called with how many units
    became rows since the last call.
    """
    folder = open_folder(work.out)
    skipped: list[Skip] = []
    reading = Notes()
    with ShardWriter(folder, span.name, metadata=work.metadata, plan=work.plan, span=(span.start, span.stop)) as writer:
        for units in _chunks(_units(work, span)):
            for unit in units:
                reading.add(Notes(unknown_fields=dict(unit.unknown), notes=dict(unit.notes)))
            _write_units(work, units, writer, skipped, reading)
            if tell is not None:
                tell(len(units))
        return writer.commit(skipped=skipped, reading=reading)


def _units(work: Work, span: Range) -> Iterator[Unit]:
    for file, piece in span.pieces:
        yield from read_units(file, at=piece, authors=work.authors, strict=work.strict)


def _chunks(units: Iterator[Unit]) -> Iterator[list[Unit]]:
    chunk: list[Unit] = []
    for unit in units:
        chunk.append(unit)
        if len(chunk) == _RENDER_AT_ONCE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _write_units(work: Work, units: list[Unit], writer: ShardWriter, skipped: list[Skip], reading: Notes) -> None:
    """Adds the rows of `units` in order; what cannot become rows is skipped with its reason, or raised."""
    renderer = work.render.build()
    traces = [trace for unit in units for trace in unit.traces]
    try:
        rendered = iter(renderer.render_many(traces))
    except TracemaskError:
        rendered = None  # one of them is refused: find it below
    for unit in units:
        faults = [unit.error, *unit.more_errors] if unit.error is not None else []
        extra = list(unit.findings)
        for trace, touched in zip(unit.traces, unit.rules, strict=False):  # a refused unit has rules only
            try:
                samples = next(rendered) if rendered is not None else renderer.render(trace)
                if not samples:
                    raise StoreError("TM904", what="the trace renders to no tokens", fix="remove it")
                noted = [*extra, *findings(trace), *samples[0].findings]
                samples[0] = replace(samples[0], findings=noted)
                rows = [of_sample(sample, trace) for sample in samples]
                _refuse_rows(rows, renderer.tokenizer.size)
                extra = []
            except TracemaskError as error:
                faults.append(_placed(error, trace.id, trace.source.path if trace.source else None, unit.line))
                continue
            for row in rows:
                writer.add(row)
                if touched:
                    reading.add(Notes(author_rules=_tokens_by_rule(row, touched)))
        for fault in faults:
            if work.on_error == "fail":
                raise fault
            skipped.append(Skip(code=fault.code, where=fault.where, what=fault.what, fix=fault.fix))


def _tokens_by_rule(row: Row, touched: dict[int, str]) -> dict[str, int]:
    """How many of the row's tokens lie in messages that each author rule touched. touched: message → rule label."""
    out: Counter[str] = Counter()
    for message, label in touched.items():
        out[label] += int(np.count_nonzero(row["message"] == message))
    return dict(out)


def _refuse_rows(rows: list[Row], size: int) -> None:
    """TM501 on what no shard can hold; TM205 on an id beyond the vocabulary and a model's padding of it."""
    for row in rows:
        attempt = row.scalars.get("attempt")
        if attempt is not None and not -(1 << 31) <= attempt < 1 << 31:  # the one integer that comes from outside
            where, what = str(row.scalars["id"]), f"attempt {attempt} does not fit 32 bits"
            raise StoreError("TM501", where=where, what=what, fix="number the attempts of a task from 0")
        if "reward" in row.columns:
            what = "a column 'reward' of the engine: a shard holds one reward a row"
            raise StoreError("TM501", where=str(row.scalars["id"]), what=what, fix="rename it where it is recorded")
        top = int(row["token_ids"].max(initial=0))
        if top >= size + _VOCABULARY_PADDING:
            what = f"token id {top} in a vocabulary of {size}: sampled with another tokenizer"
            raise StoreError("TM205", what=what, fix="give the tokenizer of the model that sampled the log")


def _placed(error: TracemaskError, trace_id: str, path: str | None, line: int) -> TracemaskError:
    """The error with file and line in front of its place in the trace."""
    place = f"{path}:{line}" if path else trace_id
    where = error.where if path and error.where.startswith(path) else f"{place}:{error.where}".rstrip(":")
    return type(error)(error.code, where=where, what=error.what, fix=error.fix)
