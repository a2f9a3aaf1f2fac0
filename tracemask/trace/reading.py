"""From a path to traces, one at a time, and what was skipped. Knows formats only by their table."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from tracemask.core.errors import TracemaskError, UsageError
from tracemask.core.finding import Finding
from tracemask.trace.authors import AuthorRules
from tracemask.trace.files import InputFile, Layout, LeftOut, find_files
from tracemask.trace.formats import FORMATS, UnitKind
from tracemask.trace.inputs import count_records
from tracemask.trace.model import Trace
from tracemask.trace.sniff import identify
from tracemask.trace.unit import Unit, UnitRange, format_of, read_units

READER_VERSION = "3"
"""Raised whenever a log becomes other traces than before: a conversion is not continued by another reader."""

OnError = Literal["skip", "fail"]
Paths = str | os.PathLike[str] | list[str | os.PathLike[str]]


def inputs(paths: Paths, format: str = "auto") -> list[InputFile]:
    """The files of an input with their format, in a fixed order; a directory, a glob or a list is one input.

    format "auto" sniffs each file and requires that all agree; files of a folder that no format knows are left out.
    Raises UsageError TM901, TM904, TM905, TM902, TraceError TM912, TM913.
    """
    return sorted_out(paths, format)[0]


def sorted_out(paths: Paths, format: str = "auto") -> tuple[list[InputFile], LeftOut]:
    """`inputs`, and what of the input is none of them."""
    left_out = LeftOut()
    files = find_files(paths, left_out)
    if format != "auto":
        known = FORMATS[format].name
        return [replace(file, format=known, why="as asked") for file in files], left_out
    known_files, unfit = identify(files)
    left_out.unfit.extend(unfit)
    return known_files, left_out


def count_units(file: InputFile) -> int:
    """How many units the file holds; cheap: lines are counted, not decoded."""
    return 1 if format_of(file).unit is UnitKind.FILE else count_records(file)


def unit_ranges(file: InputFile, every: int) -> list[UnitRange]:
    """The file's units in ranges of `every`, in one pass, each with the byte where a worker may seek to."""
    if every < 1:
        raise UsageError("TM900", what=f"ranges of {every} units", fix="use 1 or more")
    if file.layout is not Layout.LINES or format_of(file).unit is UnitKind.FILE or file.path.endswith((".gz", ".zst")):
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


class Reading:
    """The traces of an input, one at a time; what was skipped and why is known while and after it is iterated.

    format, why: what was chosen and the reason. skipped: one coded error per refused line, with file:line:field.
    findings: what was repaired or looks wrong. unknown_fields: field path → how often. n_read: traces given out.
    rules: label of an author rule → messages it touched. notes: what an importer left out, and how often.
    left_out: files of the input that are not read. Iterating again reads again from the start.
    """

    def __init__(
        self,
        files: list[InputFile],
        *,
        on_error: OnError,
        authors: AuthorRules | None,
        strict: bool,
        left_out: LeftOut | None = None,
    ) -> None:
        self.files = files
        self.left_out = left_out or LeftOut()
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
            self.skipped.extend(unit.more_errors)

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
    Raises UsageError TM901, TM904, TM905, TM902, TraceError TM912, TM913.
    """
    if on_error not in ("skip", "fail"):
        raise UsageError("TM900", what=f"on_error {on_error!r}", fix="use skip or fail")
    rules = authors if isinstance(authors, AuthorRules) or authors is None else AuthorRules.load(authors)
    files, left_out = sorted_out(paths, format)
    return Reading(files, on_error=on_error, authors=rules, strict=strict, left_out=left_out)


__all__ = [
    "InputFile",
    "Reading",
    "Unit",
    "UnitRange",
    "count_units",
    "inputs",
    "read_traces",
    "read_units",
    "sorted_out",
    "unit_ranges",
]
