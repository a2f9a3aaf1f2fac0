"""From a path to traces: sniffing, units, errors that are counted and not lost. Knows formats only by their table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import ValidationError

from tracemask.core.errors import TraceError, TracemaskError, UsageError
from tracemask.core.finding import Finding, Place
from tracemask.trace.authors import AuthorRules
from tracemask.trace.fields import first_problem
from tracemask.trace.formats import FORMATS, Context, Format, Line, UnitKind
from tracemask.trace.inputs import InputFile, Layout, Record, count_records, document, find_files, lines_of, records
from tracemask.trace.invariants import refuse_broken
from tracemask.trace.model import Source, Trace
from tracemask.trace.sniff import identify

OnError = Literal["skip", "fail"]
Paths = str | os.PathLike[str] | list[str | os.PathLike[str]]


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
    A unit may have both traces and an error: a session whose last line was cut off.
    """

    index: int
    line: int
    traces: list[Trace] = field(default_factory=list)
    error: TracemaskError | None = None
    findings: list[Finding] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    rules: list[dict[int, str]] = field(default_factory=list)


def inputs(paths: Paths, format: str = "auto") -> list[InputFile]:
    """The files of an input with their format, in a fixed order; a directory, a glob or a list is one input.

    format "auto" sniffs each file and requires that all agree; files of a folder that no format knows are left out.
    Raises UsageError TM901, TM904, TM902, TraceError TM912, TM913.
    """
    files = find_files(paths)
    if format != "auto":
        known = FORMATS[format].name
        return [replace(file, format=known, why="as asked") for file in files]
    return identify(files)


def count_units(file: InputFile) -> int:
    """How many units the file holds; cheap: lines are counted, not decoded."""
    return 1 if _format(file).unit is UnitKind.FILE else count_records(file)


def unit_ranges(file: InputFile, every: int) -> list[UnitRange]:
    """The file's units in ranges of `every`, in one pass, each with the byte where a worker may seek to."""
    if every < 1:
        raise UsageError("TM900", what=f"ranges of {every} units", fix="use 1 or more")
    if file.layout is not Layout.LINES or _format(file).unit is UnitKind.FILE or file.path.endswith((".gz", ".zst")):
        count = count_units(file)
        return [UnitRange(start, min(start + every, count)) for start in range(0, count, every)]
    starts: list[tuple[int, int]] = []
    unit = offset = line = 0
    with open(file.path, "rb", buffering=1 << 20) as handle:
        for raw in handle:
            if not raw.isspace():
                if unit % every == 0:
                    starts.append((offset, line))
                unit += 1
            offset += len(raw)
            line += 1
    return [UnitRange(k * every, min((k + 1) * every, unit), *where) for k, where in enumerate(starts)]


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
    kind = _format(file)
    span = at or UnitRange(start, 2**62 if stop is None else stop)
    if kind.unit is UnitKind.FILE:
        if span.start == 0 and span.stop > 0:
            yield _file_unit(kind, file, authors, strict)
        return
    for record in records(file, span.start, span.stop, offset=span.offset, line=span.line):
        yield _record_unit(kind, file, record, authors, strict)


def _format(file: InputFile) -> Format:
    return FORMATS[file.format]


def _record_unit(kind: Format, file: InputFile, record: Record, authors: AuthorRules | None, strict: bool) -> Unit:
    unit = Unit(record.index, record.line, error=record.error)
    if record.error is None:
        _import(unit, kind, record.value, Context(file, record.line), authors, strict)
        unit.findings.extend(_surrogates(file, record))
    return unit


def _file_unit(kind: Format, file: InputFile, authors: AuthorRules | None, strict: bool) -> Unit:
    unit = Unit(0, 1)
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
    _import(unit, kind, value, Context(file, 1), authors, strict)
    return unit


def _surrogates(file: InputFile, record: Record) -> Iterator[Finding]:
    for path in record.replaced:
        yield Finding(
            "TM916",
            f"{path}: a lone surrogate was replaced by U+FFFD",
            Place(path=file.rel, row=record.index),
            data={"field": path, "line": record.line},
        )


def _import(unit: Unit, kind: Format, value: Any, context: Context, authors: AuthorRules | None, strict: bool) -> None:
    """Fills the unit's traces, or its error with file:line:field."""
    try:
        traces = list(kind.read(value, context))
        if not traces or not all(trace.messages for trace in traces):
            raise TraceError("TM911", what="no messages", fix="remove the record, or pass its own --format")
        for trace in traces:
            refuse_broken(trace)
            trace.source = _source(trace, kind, context)
            _count_unknown(trace, kind, context.unknown)
            unit.rules.append(authors.apply(trace) if authors is not None else {})
        unit.unknown = context.unknown
        if strict and unit.unknown:
            raise TraceError("TM911", where=next(iter(unit.unknown)), what="unknown field, and strict is on")
        unit.traces = traces
    except ValidationError as error:
        field_path, reason = first_problem(error)
        unit.error = TraceError(
            "TM911", where=f"{context.where()}:{field_path}", what=reason, fix="see `tracemask schema trace`"
        )
    except (AttributeError, IndexError, KeyError, RecursionError, TypeError) as error:
        # Strangers' logs hold what no importer foresaw: one such unit is refused and counted, the run goes on.
        unit.error = TraceError(
            "TM911",
            where=context.where(),
            what=f"the importer did not expect this: {error!r}"[:300],
            fix="report it with the record",
        )
    except TracemaskError as error:
        where = error.where if error.where.startswith(f"{context.file.rel}:") else f"{context.where()}:{error.where}"
        unit.error = type(error)(error.code, where=where.rstrip(":"), what=error.what, fix=error.fix)
    unit.findings = [*unit.findings, *context.findings]
    unit.notes = context.notes


def _source(trace: Trace, kind: Format, context: Context) -> Source:
    source = trace.source
    if source is None:
        return Source(format=kind.name, path=context.file.rel, line=context.line)
    line = context.line if source.line is None else source.line
    return source.model_copy(update={"format": kind.name, "path": context.file.rel, "line": line})


def _count_unknown(trace: Trace, kind: Format, unknown: Counter[str]) -> None:
    for key in (*trace.extra, *(trace.model_extra or ())):
        if key not in kind.known:
            unknown[key] += 1
    for message in trace.messages:
        if message.extra or message.__pydantic_extra__:
            for key in (*message.extra, *message.extra.get("log", ()), *(message.model_extra or ())):
                if key not in kind.known and key != "log":
                    unknown[f"messages[].{key}"] += 1
        for block in message.blocks:
            for key in block.__pydantic_extra__ or ():
                if key not in kind.known:
                    unknown[f"messages[].blocks[].{key}"] += 1
        if message.sampled is not None and message.sampled.model_extra:
            for key in message.sampled.model_extra:
                unknown[f"messages[].sampled.{key}"] += 1


class Reading:
    """The traces of an input, one at a time; what was skipped and why is known while and after it is iterated.

    format, why: what was chosen and the reason. skipped: one coded error per refused line, with file:line:field.
    findings: what was repaired or looks wrong. unknown_fields: field path → how often. n_read: traces given out.
    rules: label of an author rule → messages it touched. Iterating again reads again from the start.
    """

    def __init__(self, files: list[InputFile], *, on_error: OnError, authors: AuthorRules | None, strict: bool) -> None:
        self.files = files
        self.format = files[0].format
        self.why = files[0].why
        self._fail = on_error == "fail"
        self._authors = authors
        self._strict = strict
        self._reset()

    def _reset(self) -> None:
        self.skipped: list[TracemaskError] = []
        self.findings: list[Finding] = []
        self.unknown_fields: Counter[str] = Counter()
        self.notes: Counter[str] = Counter()
        self.rules: Counter[str] = Counter()
        self.n_read = 0
        self.n_units = 0

    def units(self) -> Iterator[Unit]:
        """The same reading by unit, counted alike."""
        self._reset()
        for file in self.files:
            for unit in read_units(file, authors=self._authors, strict=self._strict):
                self._count(unit)
                yield unit
        if self.n_units == 0:
            raise UsageError("TM904", where=self.files[0].rel, what="the input holds no records")

    def _count(self, unit: Unit) -> None:
        self.n_units += 1
        self.findings.extend(unit.findings)
        if unit.unknown:
            self.unknown_fields.update(unit.unknown)
        if unit.notes:
            self.notes.update(unit.notes)
        for touched in unit.rules:
            self.rules.update(touched.values())
        if unit.error is not None:
            if self._fail:
                raise unit.error
            self.skipped.append(unit.error)

    def __iter__(self) -> Iterator[Trace]:
        for unit in self.units():
            for trace in unit.traces:
                self.n_read += 1
                yield trace


def read_traces(
    paths: Paths,
    *,
    format: str = "auto",
    on_error: OnError = "skip",
    authors: AuthorRules | str | os.PathLike[str] | dict[str, Any] | None = None,
    strict: bool = False,
) -> Reading:
    """The traces of a file, directory, glob or list of these, streamed.

    format: a name of `tracemask formats`, or "auto". on_error: "skip" lists bad lines in .skipped, "fail" raises the
    first. authors: rules, or the TOML file or dict that holds them. strict: unknown fields refuse their line.
    Raises UsageError TM901, TM904, TM902, TraceError TM912, TM913.
    """
    if on_error not in ("skip", "fail"):
        raise UsageError("TM900", what=f"on_error {on_error!r}", fix="use skip or fail")
    rules = authors if isinstance(authors, AuthorRules) or authors is None else AuthorRules.load(authors)
    return Reading(inputs(paths, format), on_error=on_error, authors=rules, strict=strict)


__all__ = [
    "InputFile",
    "Reading",
    "Unit",
    "UnitRange",
    "count_units",
    "inputs",
    "lines_of",
    "read_traces",
    "read_units",
    "unit_ranges",
]
