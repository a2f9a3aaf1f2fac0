"""From logs to a dataset: every range of the input becomes one committed shard, whoever does it. Knows no weight.

`convert_range` is pure: the same work and range give the same bytes in any process, on any machine. Engines only
schedule ranges; that nothing is lost or done twice comes from names and receipts.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tracemask.core.errors import StoreError, TracemaskError, UsageError
from tracemask.core.fingerprint import fingerprint
from tracemask.core.registry import Table
from tracemask.store.commit import finish, prepare, remove_dataset, valid_receipt
from tracemask.store.fetch import local_copies
from tracemask.store.folder import open_folder
from tracemask.store.lock import locked
from tracemask.store.manifest import Input, Manifest, Notes, Receipt, Skip
from tracemask.store.plan import DEFAULT_SHARD_BYTES, Range, cut, describe, units_per_shard
from tracemask.store.row import Row
from tracemask.store.rows import of_sample
from tracemask.store.schema import FORMAT_VERSION, Profile, make_metadata
from tracemask.store.summary import Summary
from tracemask.store.writer import ShardWriter
from tracemask.trace.authors import AuthorRules
from tracemask.trace.invariants import findings
from tracemask.trace.reading import OnError, Unit, inputs, read_units

if TYPE_CHECKING:
    from tracemask.render.renderer import Renderer

_VOCABULARY_PADDING = 1024  # models pad their embedding by less; an id in the padding is for check to judge (TM201)
_RENDER_AT_ONCE = 32  # traces whose runs are encoded in one batch


@dataclass(frozen=True)
class RenderConfig:
    """What a Renderer is made of, as plain values that travel to workers.

    tokenizer: folder or file. template: Jinja source text, None: the tokenizer's own. date: ISO, None: the pinned one.
    """

    tokenizer: str
    template: str | None = None
    template_kwargs: tuple[tuple[str, Any], ...] = ()
    history: str = "auto"
    control_text: Literal["text", "ids"] = "text"
    stop: tuple[str, ...] | None = None
    backend: str = "auto"
    date: str | None = None

    def build(self) -> Renderer:
        """The renderer; one per process and configuration."""
        return _renderer(self)


@lru_cache(maxsize=4)
def _renderer(config: RenderConfig) -> Renderer:
    from tracemask.render.renderer import Renderer

    return Renderer(
        config.tokenizer,
        template=config.template,
        template_kwargs=dict(config.template_kwargs),
        history=config.history,
        control_text=config.control_text,
        stop=config.stop,
        backend=config.backend,
        date=config.date,
    )


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


@dataclass(frozen=True, slots=True)
class Progress:
    """What a conversion has done. done, total: units; reused: shards that an earlier run had finished."""

    done: int
    total: int
    shards: int
    reused: int
    rows: int
    tokens: int
    skipped: int


Engine = Callable[[Work, Sequence[Range], int], Iterator[Receipt]]
ENGINES: Table[Engine] = Table("engine", local="tracemask.store.engines:local", ray="tracemask.store.engines:ray_tasks")


def convert_range(work: Work, span: Range) -> Receipt:
    """Renders the units of one range into one committed shard; returns its receipt."""
    folder = open_folder(work.out)
    skipped: list[Skip] = []
    reading = Notes()
    with ShardWriter(folder, span.name, metadata=work.metadata, plan=work.plan, span=(span.start, span.stop)) as writer:
        for units in _chunks(_units(work, span)):
            for unit in units:
                reading.add(Notes(unknown_fields=dict(unit.unknown), notes=dict(unit.notes)))
            _write_units(work, units, writer, skipped, reading)
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
    """TM501 on a column that no shard can hold; TM205 on an id beyond the vocabulary and a model's padding of it."""
    for row in rows:
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


@dataclass
class _Run:
    """Receipts as they come, and what the callback is told."""

    ranges: list[Range]
    progress: Callable[[Progress], None] | None
    receipts: dict[str, Receipt] = field(default_factory=dict)
    reused: int = 0

    def through(self, work: Work, engine: Callable[[list[Range]], Iterator[Receipt]]) -> list[Receipt]:
        """The receipts of all ranges: those that an earlier run left, and the engine's for the rest."""
        folder = open_folder(work.out)
        for span in self.ranges:
            done = valid_receipt(folder, span.name, plan=work.plan, span=(span.start, span.stop))
            if done is not None:
                self.reused += 1
                self._take(done)
        for receipt in engine([span for span in self.ranges if span.name not in self.receipts]):
            self._take(receipt)
        return [self.receipts[span.name] for span in self.ranges]

    def _take(self, receipt: Receipt) -> None:
        self.receipts[receipt.name] = receipt
        if self.progress is None:
            return
        done = list(self.receipts.values())
        self.progress(
            Progress(
                done=sum(one.range[1] - one.range[0] for one in done),
                total=self.ranges[-1].stop,
                shards=len(done),
                reused=self.reused,
                rows=sum(one.counts.rows for one in done),
                tokens=sum(one.counts.tokens for one in done),
                skipped=sum(len(one.skipped) for one in done),
            )
        )


def convert(
    paths: str | os.PathLike[str] | list[str | os.PathLike[str]],
    out: str,
    *,
    render: RenderConfig,
    engine: str = "local",
    workers: int = 1,
    profile: Profile | str = Profile.FAST,
    rows_per_shard: int | None = None,
    shard_bytes: int = DEFAULT_SHARD_BYTES,
    max_skipped: int = 0,
    on_error: OnError | str = "skip",
    format: str = "auto",
    authors: AuthorRules | str | os.PathLike[str] | dict[str, Any] | None = None,
    strict: bool = False,
    force: bool = False,
    progress: Callable[[Progress], None] | None = None,
) -> Summary:
    """Converts logs (paths, globs or fsspec URLs) into a dataset at `out`, a folder or an fsspec URL.

    A run that was killed is continued by the same call and ends with the bytes of an undisturbed one.

    rows_per_shard: traces a shard takes at most (their rows stay together); default: from shard_bytes. max_skipped: the
    summary says whether more records were skipped. force: replaces another dataset in the folder. workers > 1 start
    processes by spawning: a script needs its `if __name__ == "__main__"`.

    Errors: TM901, TM904, TM912, TM913 of the input, TM923 of the tokenizer, TM930 folder in use, TM933 another dataset
    there, TM932 disk or permissions; with on_error "fail" that of the first bad record.
    """
    _check_options(workers, rows_per_shard, shard_bytes, max_skipped, on_error)
    run_engine = ENGINES[engine]
    rules = authors if isinstance(authors, AuthorRules) or authors is None else AuthorRules.load(authors)
    with local_copies(paths) as local:
        files = inputs(local, format)
        described = describe(files)
        every = rows_per_shard or units_per_shard(files, described, shard_bytes=shard_bytes)
        metadata = render_metadata(render.build(), profile=profile)
        config = _config(render, Profile(profile), every, rules, strict)
        plan = fingerprint([one.model_dump() for one in described], config)
        run = _Run(cut(files, every=every, plan=plan), progress)
        work = Work(out, plan, render, metadata, "fail" if on_error == "fail" else "skip", rules, strict)
        manifest = _write(run, work, lambda todo: run_engine(work, todo, workers), config, described, force=force)
    how = {"format": files[0].format, "why": files[0].why}
    return Summary.of(manifest, out=out, reused=run.reused, max_skipped=max_skipped, **how)


def _write(
    run: _Run,
    work: Work,
    engine: Callable[[list[Range]], Iterator[Receipt]],
    config: dict[str, Any],
    described: list[Input],
    *,
    force: bool,
) -> Manifest:
    """Under the lock: what an earlier run left, the rest, then the manifest. TM904 where nothing became a row."""
    if not run.ranges:
        where = described[0].path
        raise UsageError("TM904", where=where, what="the input holds no records", fix="give a log with records")
    folder = open_folder(work.out)
    with locked(folder, force=force):
        prepare(folder, plan=work.plan, force=force)
        receipts = run.through(work, engine)
        if not any(receipt.counts.rows for receipt in receipts):
            remove_dataset(folder)
            raise _nothing(described[0].path, receipts)
        return finish(
            folder, plan=work.plan, receipts=receipts, metadata=work.metadata, config=config, inputs=described
        )


def _config(
    render: RenderConfig, profile: Profile, every: int, rules: AuthorRules | None, strict: bool
) -> dict[str, Any]:
    """What besides the inputs decides the bytes; not workers, engine or tokenizer backend."""
    return {
        "store": FORMAT_VERSION,
        "renderer": render.build().fingerprint,
        "profile": profile.value,
        "units_per_shard": every,
        "authors": None if rules is None else rules.to_json(),
        "strict": strict,
    }


def render_metadata(renderer: Renderer, *, profile: Profile | str = Profile.FAST) -> dict[str, Any]:
    """What shards say about the renderer that made them. invariants: the trace's own faults are in `findings`."""
    from tracemask.render.renderer import RENDERER_VERSION

    made = make_metadata(
        tokenizer_sha256=renderer.tokenizer.sha256,
        vocab_size=renderer.tokenizer.size,
        template_sha256=hashlib.sha256(renderer.template.source.encode()).hexdigest(),
        renderer_version=RENDERER_VERSION,
        profile=profile,
    )
    return {**made, "invariants": 1}


def _check_options(workers: int, rows: int | None, shard_bytes: int, max_skipped: int, on_error: str) -> None:
    least = {"workers": (workers, 1), "rows per shard": (rows, 1), "shard bytes": (shard_bytes, 1),
             "skips allowed": (max_skipped, 0)}  # fmt: skip
    for name, (given, low) in least.items():
        if given is not None and given < low:
            raise UsageError("TM900", what=f"{name}: {given}", fix=f"give {low} or more")
    if on_error not in ("skip", "fail"):
        raise UsageError("TM900", what=f"on_error {on_error!r}", fix="use skip or fail")


def _nothing(where: str, receipts: list[Receipt]) -> StoreError:
    skipped = [skip for receipt in receipts for skip in receipt.skipped]
    first = f"; the first of {len(skipped)}: {skipped[0].where}: {skipped[0].code} {skipped[0].what}" if skipped else ""
    return StoreError("TM904", where=where, what=f"no record became a row{first}", fix="repair the input")
