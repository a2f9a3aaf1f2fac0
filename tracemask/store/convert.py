"""From logs to a dataset: every range of the input becomes one committed shard, whoever does it. Knows no weight.

Engines only schedule ranges; that nothing is lost or done twice comes from names and receipts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

from tracemask.core.errors import StoreError, UsageError
from tracemask.core.fingerprint import fingerprint
from tracemask.core.registry import Table
from tracemask.store.commit import finish, prepare, remove_dataset
from tracemask.store.fetch import local_copies
from tracemask.store.folder import open_folder
from tracemask.store.lock import locked
from tracemask.store.manifest import Input, Manifest, Receipt
from tracemask.store.plan import DEFAULT_SHARD_BYTES, Range, cut, describe, units_per_shard
from tracemask.store.progress import Progress, Run
from tracemask.store.render_config import RenderConfig, render_metadata
from tracemask.store.schema import FORMAT_VERSION, Profile
from tracemask.store.summary import Summary
from tracemask.store.work import Tell, Work
from tracemask.trace.authors import AuthorRules
from tracemask.trace.reading import READER_VERSION, OnError, sorted_out

__all__ = ["ENGINES", "Engine", "Progress", "RenderConfig", "convert"]


class Engine(Protocol):
    """Does the ranges in any order, anywhere; receipts as they are done. tell: takes units done in between."""

    def __call__(self, work: Work, ranges: Sequence[Range], tell: Tell, *, workers: int) -> Iterator[Receipt]: ...


ENGINES: Table[Engine] = Table("engine", local="tracemask.store.engines:local", ray="tracemask.store.engines:ray_tasks")


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
        files, left_out = sorted_out(local, format)
        described = describe(files)
        every = rows_per_shard or units_per_shard(files, described, shard_bytes=shard_bytes)
        metadata = render_metadata(render.build(), profile=profile)
        config = _config(render, Profile(profile), every, rules, strict)
        plan = fingerprint([one.model_dump() for one in described], config)
        run = Run(cut(files, every=every, plan=plan), progress)
        work = Work(out, plan, render, metadata, "fail" if on_error == "fail" else "skip", rules, strict)
        started = partial(run_engine, work, workers=workers)
        manifest = _write(run, work, started, config, described, force=force)
    how = {"format": files[0].format, "why": files[0].why}
    return Summary.of(manifest, out=out, reused=run.reused, max_skipped=max_skipped, left_out=left_out, **how)


def _write(
    run: Run,
    work: Work,
    engine: Callable[[list[Range], Tell], Iterator[Receipt]],
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
        "reader": READER_VERSION,
        "renderer": render.build().fingerprint,
        "profile": profile.value,
        "units_per_shard": every,
        "authors": None if rules is None else rules.to_json(),
        "strict": strict,
    }


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
    return StoreError(
        "TM904",
        where=where,
        what=f"no record became a row{first}",
        fix="--on-error fail says what to do about the first",
    )
