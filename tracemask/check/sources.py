"""What `check` is pointed at: shards, other tools' datasets, or rollout logs that are rendered on the way."""

from __future__ import annotations

import glob
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any

from tracemask.check.block import blocks
from tracemask.check.config import Settings
from tracemask.check.report import Report
from tracemask.check.runner import Session, check_dataset
from tracemask.core.errors import TracemaskError, UsageError
from tracemask.core.walk import walk
from tracemask.store.fetch import drained
from tracemask.store.folder import open_folder
from tracemask.store.foreign import SAVED
from tracemask.store.foreign_names import COMPLETION_IDS, IDS
from tracemask.store.manifest import holds_dataset
from tracemask.store.opening import Named
from tracemask.store.records import RECORDS
from tracemask.store.row import Row
from tracemask.trace.files import Layout
from tracemask.trace.model import Trace
from tracemask.trace.reading import Reading, read_traces

BATCH = 64  # traces rendered at once
_LINE = 1 << 26  # bytes of the first line that are looked at


def check_paths(
    paths: Sequence[str], *, settings: Settings, traces: str | None = None, baseline_out: Counter[str] | None = None
) -> Report:
    """The report on `paths`: one kind of thing, datasets or logs.

    A rollout log is checked as traces, and, where a tokenizer is given, as the rows that rendering makes of them.
    Either may come through a pipe, "-" or another.
    """
    template = template_source(settings.template)
    with drained(paths) as files:
        logs = [file for file in files if is_log(file, settings.columns)]
        if logs:
            _refuse_mixed(files, logs)
            _refuse_for_logs(", ".join(map(str, files)), columns=settings.columns, traces=traces)
            return _check_logs(files, settings, template, baseline_out)
        return check_dataset(
            files,
            tokenizer=settings.tokenizer,
            template=template,
            settings=settings,
            traces=read_traces(traces, on_error="fail") if traces else (),
            baseline_out=baseline_out,
        )


def _refuse_mixed(files: Sequence[Named], logs: Sequence[Named]) -> None:
    """UsageError TM900 for logs and datasets in one run: their places and rules differ."""
    other = next((file for file in files if file not in logs), None)
    if other is not None:
        what = f"a dataset of token ids, and {logs[0]} is a log of conversations"
        raise UsageError("TM900", where=str(other), what=what, fix="check them apart")


def _refuse_for_logs(where: str, **options: Any) -> None:
    """UsageError TM900 for options that would change nothing about a log."""
    for name, value in options.items():
        if value:
            what = f"--{name} is for datasets of token ids, and this is a log of conversations"
            raise UsageError("TM900", where=where, what=what, fix=f"leave --{name} out")


def template_source(path: str | None) -> str | None:
    """The Jinja source in a file. UsageError TM901: no such file; TM900: not text."""
    if path is None:
        return None
    if not Path(path).is_file():
        raise UsageError("TM901", where=path, what="no such template file", fix="check --template")
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UsageError("TM900", where=path, what="the template is not UTF-8", fix="give a Jinja file") from None


def is_log(path: Named, columns: Mapping[str, str]) -> bool:
    """Whether a file, a folder or a glob holds conversations rather than token ids, which may have the names that
    `columns` gives them. Of a folder its first file speaks.

    UsageError TM901: no such file; TM905: a folder of other things.
    """
    text, place = str(path), Path(path)
    if "://" in text:
        return False
    if not place.exists():
        if glob.has_magic(text) and (found := sorted(glob.glob(text, recursive=True))):
            return is_log(found[0], columns)
        raise UsageError("TM901", where=text, what="no such file or folder", fix="check the path")
    if not place.is_dir():
        return _holds_talk(place, columns)
    if holds_dataset(open_folder(os.fspath(path))) or any((place / name).exists() for name in SAVED):
        return False
    found = _first_file(place)
    return found is not None and _holds_talk(found, columns)


def _first_file(folder: Path) -> Path | None:
    """The first file that a dataset may be made of; a folder without one: the first that may be a log."""
    log = None
    for here, _, names in walk(folder, wanted=lambda name: _suffix(name) in RECORDS or Layout.of(name) is not None):
        for name in names:
            if _suffix(name) in RECORDS:
                return here / name
            log = log or (here / name if Layout.of(name) is not None else None)
    return log


def _suffix(name: str) -> str:
    return PurePath(name).suffix.removeprefix(".").lower()


def _holds_talk(file: Path, columns: Mapping[str, str]) -> bool:
    known = {*IDS, *COMPLETION_IDS, *columns.values()}
    kind = _suffix(file.name)
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return not known & set(pq.read_schema(file).names)
        except (pa.ArrowInvalid, OSError):
            return False  # a broken file is named by the reader of datasets
    if kind not in ("jsonl", "ndjson"):
        return kind not in RECORDS
    with open(file, "rb") as lines:
        for raw in lines:
            if raw.isspace():
                continue
            try:
                first = json.loads(raw[:_LINE].removeprefix(b"\xef\xbb\xbf"))
            except ValueError:
                return True  # a broken line is named by the reader of logs
            return isinstance(first, dict) and not known & first.keys()
    return False


class Log:
    """What the rows of a rendered log belong to: a dataset of ours that lies in no file."""

    kind = "tracemask"
    metadata: Mapping[str, Any] = MappingProxyType({})


def _check_logs(
    paths: Sequence[Named], settings: Settings, template: str | None, baseline_out: Counter[str] | None
) -> Report:
    session = Session(settings, tokenizer=settings.tokenizer, template=template, baseline_out=baseline_out)
    session.start(Log(), path=", ".join(map(str, paths)))
    reading = read_traces([os.fspath(path) for path in paths])
    piped = {os.fspath(path): str(path) for path in paths}
    session.paths = {file.rel: piped.get(file.path, file.path) for file in reading.files}
    if session.run.tokenizer is None:
        for trace in reading:
            session.trace(trace, alone=True)
    else:
        rows = _rendered(reading, session, template)
        for block in blocks(rows, tokens=settings.block_tokens, line_of=_line_of):
            session.block(block)
    for error in reading.skipped:
        session.unread(error)
    session.remarks += [f"{session.placed(each).place}: {each.code} {each.message}" for each in reading.findings]
    return session.report()


def _line_of(row: Row) -> int | None:
    source = row.scalars.get("source")
    return source["line"] if source else None


def _rendered(reading: Reading, session: Session, template: str | None) -> Iterator[tuple[Row, str]]:
    """Rows of a log, each with its file, rendered a batch of traces at a time; what cannot be rendered is named."""
    from tracemask.render.renderer import Renderer
    from tracemask.store.rows import of_sample

    assert session.run.tokenizer is not None
    renderer = Renderer(session.run.tokenizer, template=template, date=session.settings.date)
    index = 0
    for batch in _batches(iter(reading), BATCH):
        for trace, samples in _samples(renderer, batch, session):
            session.trace(trace)
            for sample in samples:
                yield of_sample(sample, trace, index=index), trace.source.path or "" if trace.source else ""
                index += 1


def _samples(renderer: Any, batch: list[Trace], session: Session) -> Iterator[tuple[Trace, list[Any]]]:
    try:
        yield from zip(batch, renderer.render_many(batch), strict=True)
    except TracemaskError:  # one of them: find out which
        for trace in batch:
            try:
                samples = renderer.render(trace)
            except TracemaskError as error:
                session.unread(error)
                samples = []
            yield trace, samples


def _batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(islice(items, size)):
        yield batch
