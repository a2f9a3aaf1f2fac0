"""What `check` is pointed at: shards, other tools' datasets, or rollout logs that are rendered on the way."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tracemask.check.block import blocks
from tracemask.check.config import Settings
from tracemask.check.report import Report
from tracemask.check.runner import Session, check_dataset
from tracemask.core.errors import TracemaskError, UsageError
from tracemask.store.fetch import drained
from tracemask.store.foreign_names import COMPLETION_IDS, IDS
from tracemask.store.opening import Named

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
        if any(is_log(file, settings.columns) for file in files):
            _refuse_for_logs(", ".join(map(str, files)), columns=settings.columns, traces=traces)
            return _check_logs(files, settings, template, baseline_out)
        return check_dataset(
            files,
            tokenizer=settings.tokenizer,
            template=template,
            settings=settings,
            traces=_traces([traces]) if traces else (),
            baseline_out=baseline_out,
        )


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
    """Whether a file holds conversations rather than token ids, which may have the names that `columns` gives them.

    UsageError TM901: no such file.
    """
    file = Path(path)
    if "://" not in str(path) and not file.exists():
        raise UsageError("TM901", where=str(path), what="no such file or folder", fix="check the path")
    if file.is_dir() or file.suffix.lower() not in (".jsonl", ".ndjson", ".json", ".traj", ".eval"):
        return False
    if file.suffix.lower() in (".traj", ".eval"):
        return True
    known = (*IDS, *COMPLETION_IDS, *columns.values())
    with open(file, "rb") as lines:
        for raw in lines:
            if raw.isspace():
                continue
            try:
                first = json.loads(raw[:_LINE].removeprefix(b"\xef\xbb\xbf"))
            except ValueError:
                return True  # a broken line is named by the reader of logs
            return isinstance(first, dict) and not any(name in first for name in known)
    return False


def _traces(paths: Sequence[Named], session: Session | None = None) -> Iterator[Any]:
    """The traces of logs; records that cannot be read are named in the session, or stop the run without one."""
    from tracemask.trace import read_traces

    for path in paths:
        reading = read_traces(os.fspath(path), on_error="fail" if session is None else "skip")
        yield from reading
        if session is not None:
            session.unreadable += [str(error) for error in reading.skipped]
            session.remarks += [f"{each.place}: {each.code} {each.message}" for each in reading.findings]


class Log:
    """What the rows of a rendered log belong to: a dataset of ours that lies in no file."""

    kind = "tracemask"
    metadata: Mapping[str, Any] = MappingProxyType({})


def _check_logs(
    paths: Sequence[Named], settings: Settings, template: str | None, baseline_out: Counter[str] | None
) -> Report:
    session = Session(settings, tokenizer=settings.tokenizer, template=template, baseline_out=baseline_out)
    session.start(Log(), path=", ".join(map(str, paths)))
    if session.run.tokenizer is None:
        for trace in _traces(paths, session):
            session.trace(trace, alone=True)
        return session.report()
    for block in blocks(_rendered(paths, session, template), tokens=settings.block_tokens):
        session.block(block)
    return session.report()


def _rendered(paths: Sequence[Named], session: Session, template: str | None) -> Iterator[tuple[Any, str]]:
    """The rows of a log, rendered a batch of traces at a time; a trace that cannot be rendered is named."""
    from tracemask.render.renderer import Renderer
    from tracemask.store.rows import of_sample

    assert session.run.tokenizer is not None
    renderer = Renderer(session.run.tokenizer, template=template, date=session.settings.date)
    index = 0
    for path in paths:
        for batch in _batches(_traces([path], session), BATCH):
            for trace, samples in _samples(renderer, batch, session.unreadable):
                session.trace(trace)
                for sample in samples:
                    yield of_sample(sample, trace, index=index), str(path)
                    index += 1


def _samples(renderer: Any, batch: list[Any], unreadable: list[str]) -> Iterator[tuple[Any, list[Any]]]:
    try:
        yield from zip(batch, renderer.render_many(batch), strict=True)
    except TracemaskError:  # one of them: find out which
        for trace in batch:
            try:
                samples = renderer.render(trace)
            except TracemaskError as error:
                unreadable.append(str(error))
                samples = []
            yield trace, samples


def _batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(islice(items, size)):
        yield batch
