"""Which format a file is in, with the reason; refuses when none or two fit. Knows formats only by their table."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from tracemask.core.errors import TraceError, TracemaskError, UsageError
from tracemask.core.walk import PER_HIT
from tracemask.trace.files import READERS, InputFile, Layout
from tracemask.trace.formats import FORMATS, Head
from tracemask.trace.inputs import records
from tracemask.trace.streams import open_archive

_LOOK_AT = 8
_MOST = 1000  # files that no format fits, before looking on is no use unless others fit


def identify(files: list[InputFile]) -> tuple[list[InputFile], list[str]]:
    """(the files with their sniffed format, the names of those that no format fits and that are left out).

    A file that is damaged from its start on has the format of the others: reading it says what is wrong.
    Raises TraceError TM912 (none fits), TM913 (two fit, or files differ), UsageError TM904.
    """
    found: list[InputFile | None] = []
    reasons: list[TracemaskError] = []
    left_out: list[str] = []
    for file in files:
        try:
            found.append(sniff(file))
        except TracemaskError as error:
            if error.code == "TM913" or len(files) == 1:
                raise
            reasons.append(error)
            found.append(replace(file, why="damaged: taken for what the others are") if error.code == "TM910" else None)
            if error.code != "TM910":
                left_out.append(file.rel)
            if len(left_out) > max(_MOST, PER_HIT * (len(found) - len(left_out))):
                what = (
                    f"no format fits {len(left_out):,} of the first {len(found):,} files; the first: {reasons[0].what}"
                )
                raise TraceError(
                    "TM912", where=reasons[0].where, what=what, fix="name the folder of the logs"
                ) from None
    known = [file for file in found if file is not None]
    first = {file.format: file.rel for file in reversed(known) if file.format}
    if not first:
        raise reasons[0]
    if len(first) > 1:
        shown = ", ".join(f"{first[name]} is {name}" for name in sorted(first))
        raise TraceError(
            "TM913",
            what=f"the files are of {len(first)} formats: {shown}",
            fix="name the files of one format at a time",
        )
    return [file if file.format else replace(file, format=next(iter(first))) for file in known], left_out


def sniff(file: InputFile) -> InputFile:
    """The file with its format and why. Raises TraceError TM912, TM913."""
    head = _head(file)
    fits: dict[str, str] = {}
    for name in FORMATS:
        reason = FORMATS[name].sniff(head)
        if reason is not None:
            fits[name] = reason
    if len(fits) > 1:
        shown = "; ".join(f"{name}: {reason}" for name, reason in fits.items())
        raise TraceError("TM913", where=file.rel, what=f"two formats fit ({shown})", fix="pass --format")
    if not fits:
        raise TraceError(
            "TM912",
            where=file.rel,
            what=f"no known format fits: {_seen(head)}",
            fix=_fix(head),
        )
    name, reason = next(iter(fits.items()))
    return replace(file, format=name, why=reason)


def _head(file: InputFile) -> Head:
    if file.layout is Layout.ARCHIVE:
        with open_archive(file.path, file.rel) as archive:
            return Head(file.rel, file.layout, [], tuple(archive.namelist()))
    if file.layout is Layout.FOLDER:
        names = sorted(path.name for path in Path(file.path).iterdir() if path.suffix == ".json")
        return Head(file.rel, file.layout, [], tuple(names))
    first: list[Any] = []
    broken: TracemaskError | None = None
    for record in islice(records(file), _LOOK_AT):
        if record.error is None:
            first.append(record.value)
        else:
            broken = broken or record.error
    if not first and broken is not None:
        raise broken if isinstance(broken, TraceError) else TraceError("TM912", where=file.rel, what=broken.what)
    if not first:
        raise UsageError("TM904", where=file.rel, what="the file is empty")
    return Head(file.rel, file.layout, first)


def _seen(head: Head) -> str:
    if head.members:
        return f"members {', '.join(head.members[:4])}"
    rows = head.dicts()
    return f"the first record has the keys {', '.join(list(rows[0])[:12])}" if rows else "records are no objects"


def _fix(head: Head) -> str:
    plain = '{"messages": […], "reward": 1.0}'
    for row in head.dicts():
        if row.get("kind") in ("manifest", "receipt") and "plan" in row:
            return f"this describes shards of ours: {READERS} read their folder as it is"
        if {"input_ids", "labels", "loss_mask"} & row.keys():
            return f"rows that are tokenized already need no conversion: {READERS} read them as they are"
        if isinstance(row.get("conversations"), list):
            return f"ShareGPT: write from and value as role and content, a line of {plain} for each rollout"
    return f"pass --format NAME (`tracemask formats` lists them), or write a line of {plain} for each rollout"
