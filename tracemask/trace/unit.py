"""One unit of a file as traces, or as the error that refused it. Knows formats only by their table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import ValidationError

from tracemask.core.errors import TraceError, TracemaskError
from tracemask.core.finding import Finding, Place
from tracemask.trace.authors import AuthorRules
from tracemask.trace.extras import extras
from tracemask.trace.fields import first_problem
from tracemask.trace.files import InputFile, Layout
from tracemask.trace.formats import FORMATS, REFUSED, Context, Format, Line, UnitKind
from tracemask.trace.inputs import Record, document, records
from tracemask.trace.invariants import refuse_broken
from tracemask.trace.model import Reasoning, Source, Trace
from tracemask.trace.parse import DEEP, too_deep
from tracemask.trace.shape import unfamiliar


@dataclass(frozen=True, slots=True)
class UnitRange:
    """Units [start, stop) of one file. offset, line: the byte where unit `start` begins and the lines before it."""

    start: int
    stop: int
    offset: int = 0
    line: int = 0


@dataclass(slots=True)
class Unit:
    """One trace-bearing unit in file order: its traces (an episode may hold several), or the error that refused it.

    line: 1-based place in the file. rules: per trace, message index → label of the author rule that touched it.
    A unit may have both traces and errors: a session whose last line was cut off, a results file with one bad sample;
    `error` is the first, `more_errors` the rest.
    """

    index: int
    line: int
    traces: list[Trace] = field(default_factory=list)
    error: TracemaskError | None = None
    more_errors: list[TracemaskError] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    rules: list[dict[int, str]] = field(default_factory=list)


def read_units(
    file: InputFile,
    start: int = 0,
    stop: int | None = None,
    *,
    at: UnitRange | None = None,
    authors: AuthorRules | None = None,
    strict: bool = False,
) -> Iterator[Unit]:
    """The units [start, stop) of one file, in order, one at a time; never raises for a bad unit: Unit.error says why.

    at: a range of unit_ranges, instead of start and stop; then the file is read from that byte on.
    Pure in (file bytes, rel, format, authors, strict): the same range gives the same traces in any process.
    """
    kind = format_of(file)
    span = at or UnitRange(start, 2**62 if stop is None else stop)
    if kind.unit is UnitKind.FILE:
        if span.start == 0 and span.stop > 0:
            yield _file_unit(kind, file, authors, strict)
        return
    for record in records(file, span.start, span.stop, offset=span.offset, line=span.line):
        yield _record_unit(kind, file, record, authors, strict)


def format_of(file: InputFile) -> Format:
    """The format that sniffing or the user chose."""
    return FORMATS[file.format]


def _record_unit(kind: Format, file: InputFile, record: Record, authors: AuthorRules | None, strict: bool) -> Unit:
    if record.error is not None:
        return Unit(record.index, record.line, error=record.error)
    context = Context(file, record.line)
    unit = Unit(record.index, record.line, unknown=context.unknown, notes=context.notes)
    _import(unit, kind, record.value, context, authors, strict)
    if record.replaced:
        unit.findings.extend(_surrogates(file, record))
    return unit


def _file_unit(kind: Format, file: InputFile, authors: AuthorRules | None, strict: bool) -> Unit:
    context = Context(file, 1)
    unit = Unit(0, 1, unknown=context.unknown, notes=context.notes)
    value: Any = file.path
    if file.layout in (Layout.LINES, Layout.DOCUMENT):
        try:
            found = document(file) if file.layout is Layout.DOCUMENT else list(records(file))
        except TracemaskError as error:
            unit.error = error
            return unit
        bad = [record for record in found if record.error is not None]
        if bad:
            unit.error, unit.line = bad[0].error, bad[0].line
            if len(bad) > 1 or bad[0] is not found[-1] or len(found) == 1:
                return unit  # a hole in the middle: what follows cannot be trusted
        good = [record for record in found if record.error is None]
        unit.findings.extend(finding for record in good for finding in _surrogates(file, record))
        lines = [Line(record.line, record.value) for record in good]
        value = lines if file.layout is Layout.LINES or len(lines) != 1 else lines[0].value
    _import(unit, kind, value, context, authors, strict)
    return unit


def _surrogates(file: InputFile, record: Record) -> Iterator[Finding]:
    for path in record.replaced:
        yield Finding(
            "TM916",
            f"{path}: a lone surrogate was replaced by U+FFFD",
            Place(path=file.rel, line=record.line),
            data={"field": path, "line": record.line},
        )


def _import(unit: Unit, kind: Format, value: Any, context: Context, authors: AuthorRules | None, strict: bool) -> None:
    """Fills the unit's traces, and its errors with file:line:field; a trace that cannot be read costs no other."""
    traces: list[Trace] = []
    try:
        if kind.shape is not None and too_deep(_values(value)):
            raise TraceError("TM911", what=f"nested deeper than {DEEP} levels", fix="remove the record")
        for trace in context.apart(kind.read(value, context), lambda trace: _whole(trace, kind, context)):
            traces.append(trace)
        if not traces and not context.errors:
            raise TraceError("TM911", what="no messages", fix="remove the record, or pass its own --format")
        _count_unknown(unit, kind, value, traces)
        if strict and unit.unknown:
            traces = []
            raise TraceError("TM911", where=next(iter(unit.unknown)), what="unknown field, and strict is on")
    except REFUSED as error:
        context.errors.append(error)
    unit.rules = [{} if authors is None else authors.apply(trace) for trace in traces]
    unit.traces = traces
    refusals = [_refusal(error, context) for error in context.errors]
    if unit.error is not None:
        refusals.insert(0, unit.error)
    if refusals:
        unit.error, *unit.more_errors = refusals
    unit.findings.extend(context.findings)


def _whole(trace: Trace, kind: Format, context: Context) -> Trace:
    """The trace with its source. Raises TraceError where it cannot be rendered at all."""
    if not trace.messages:
        raise TraceError("TM911", what="no messages", fix="remove the record, or pass its own --format")
    refuse_broken(trace)
    trace.source = _source(trace, kind, context)
    if kind.shape is not None:  # chat rows have no place for it
        hidden = sum(
            isinstance(block, Reasoning) and block.text is None
            for message in trace.messages
            for block in message.blocks
        )
        if hidden:
            context.notes["reasoning that cannot be read (redacted or encrypted): no template gets it"] += hidden
    return trace


def _refusal(error: Exception, context: Context) -> TracemaskError:
    """The error with its place in the file; strangers' logs hold what no importer foresaw, and that is one, too."""
    if isinstance(error, TracemaskError):
        where = error.where if error.where.startswith(f"{context.file.rel}:") else f"{context.where()}:{error.where}"
        return type(error)(error.code, where=where.rstrip(":"), what=error.what, fix=error.fix)
    if isinstance(error, ValidationError):
        field_path, reason = first_problem(error)
        return TraceError(
            "TM911", where=f"{context.where()}:{field_path}", what=reason, fix="see `tracemask schema trace`"
        )
    what = f"the importer did not expect this: {error!r}"[:300]
    return TraceError("TM911", where=context.where(), what=what, fix="report it with the record")


def _source(trace: Trace, kind: Format, context: Context) -> Source:
    source = trace.source
    if source is None:
        return Source(format=kind.name, path=context.file.rel, line=context.line)
    return source.model_copy(update={"format": kind.name, "path": context.file.rel, "line": context.line})


def _count_unknown(unit: Unit, kind: Format, value: Any, traces: list[Trace]) -> None:
    """Every key that nobody knows, by the format's shape, or where the traces keep it."""
    if kind.shape is None:
        for trace in traces:
            unit.unknown.update(extras(trace))
        return
    for raw in _values(value):
        unit.unknown.update(unfamiliar(raw, kind.shape))


def _values(value: Any) -> list[Any]:
    """The JSON values of a unit: of its lines, or itself."""
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [item.value if isinstance(item, Line) else item for item in items]
