"""Opens datasets, ours and foreign, as rows by index. Knows no order, packing or weight."""

from __future__ import annotations

import bisect
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from tracemask.core.errors import StoreError, UsageError
from tracemask.core.fingerprint import fingerprint
from tracemask.store.blob import Blob, Tree, real_place
from tracemask.store.folder import open_folder
from tracemask.store.manifest import SHARD_SUFFIX, check_size, holds_dataset, read_manifest
from tracemask.store.row import Row
from tracemask.store.schema import METADATA_KEY
from tracemask.store.shard import OpenShard


class ShardInfo(NamedTuple):
    """A shard's file name and how many rows it has."""

    name: str
    rows: int


class RowSource(Protocol):
    """What a dataset needs of a shard or of a foreign file: rows by index and whole scalar columns."""

    where: str
    rows: int
    metadata: dict[str, Any]
    token_columns: tuple[str, ...]

    @property
    def scalar_names(self) -> list[str]: ...
    def row(self, i: int, *, index: int, writable: bool = False) -> Row: ...
    def scalar(self, name: str) -> list[Any]: ...


class Dataset:
    """Rows by index over one or more files. Map-style: `len(ds)`, `ds.row(i)`, iteration in stored order.

    kind: "tracemask" or "foreign". metadata: what the shards say about themselves ({} for foreign ones).
    fingerprint: sha256 of the manifest (over all of them where several paths were opened, over names and sizes for
    foreign data). paths: as given. token_columns: union over the files; a row may lack some.
    """

    def __init__(
        self, sources: Sequence[RowSource], *, kind: str, paths: tuple[str, ...], names: Sequence[str], identity: str
    ) -> None:
        self.kind, self.paths, self.fingerprint = kind, paths, identity
        self.opened_with: Mapping[str, str] | tuple[str, ...] | None = None
        self.sources = list(sources)
        self.shards = [ShardInfo(name, source.rows) for name, source in zip(names, sources, strict=True)]
        self._starts = [0, *accumulate(source.rows for source in sources)]
        self.metadata: dict[str, Any] = dict(sources[0].metadata) if sources else {}
        self.token_columns = tuple(dict.fromkeys(name for source in sources for name in source.token_columns))
        self.scalar_names = tuple(dict.fromkeys(name for source in sources for name in source.scalar_names))

    def __reduce__(self) -> tuple[Any, ...]:
        """A worker process opens the files again instead of receiving their bytes."""
        return _reopen, (self.paths, self.opened_with, self.fingerprint)

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Iterator[Row]:
        for k in range(len(self.sources)):
            yield from self.rows_of_shard(k)

    def __getitem__(self, i: int) -> Row:
        return self.row(i)

    def row(self, i: int, *, writable: bool = False) -> Row:
        """Row `i`, negative from the end. Columns are read-only views; writable=True gives views that may be changed in
        place (this process's copy; the file stays as it is). IndexError outside the dataset."""
        n = self._starts[-1]
        at = i + n if i < 0 else i
        if not 0 <= at < n:
            raise IndexError(f"row {i} of {n}")
        k = bisect.bisect_right(self._starts, at) - 1 if len(self.sources) > 1 else 0
        return self.sources[k].row(at - self._starts[k], index=at, writable=writable)

    def rows_of_shard(self, k: int) -> Iterator[Row]:
        """The rows of shard `k`, numbered as in the dataset."""
        start = self._starts[k]
        for i in range(self.sources[k].rows):
            yield self.sources[k].row(i, index=start + i)

    def locate(self, i: int) -> tuple[str, int]:
        """The path of the file that holds row `i`, and the row's number in it."""
        k = bisect.bisect_right(self._starts, i) - 1
        return self.sources[k].where, i - self._starts[k]

    def scalars(self, names: Sequence[str] | None = None) -> dict[str, list[Any]]:
        """Whole scalar columns, one value a row, None where missing; token data is not read.

        names: default all. A name that no file has is left out of the result; check with `in`.
        """
        wanted = self.scalar_names if names is None else [name for name in names if name in self.scalar_names]
        out: dict[str, list[Any]] = {name: [] for name in wanted}
        for source in self.sources:
            has = set(source.scalar_names)
            for name in wanted:
                out[name] += source.scalar(name) if name in has else [None] * source.rows
        return out


def open_dataset(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    columns: Mapping[str, str] | Sequence[str] | None = None,
) -> Dataset:
    """Opens what convert wrote, or another tool's dataset, or several of one kind as one.

    path: a folder with a manifest; one .arrow shard of ours; or a foreign dataset: Hugging Face folder (save_to_disk),
    folder of Parquet files, .parquet, .jsonl, .arrow; on a disk or behind an fsspec URL. columns: for foreign data a
    map of our names to theirs ({"ids": "tokens", "mask": "m"}), for ours a sequence of the per-token columns to read.

    Errors: TM901 no such path, TM931 not a dataset, TM904 no rows, TM508 cut, missing or unfinished, TM506 shards of
    different tokenizers or templates, TM902 no such column, TM900 a map for shards of ours or a file given twice,
    TM501 not a schema this version reads.
    """
    paths = [os.fspath(path)] if isinstance(path, str | os.PathLike) else [os.fspath(one) for one in path]
    if not paths:
        raise UsageError("TM904", what="no dataset given", fix="give at least one path")
    opened = [_open_one(one, columns) for one in paths]
    dataset = opened[0] if len(opened) == 1 else _join(opened, tuple(paths))
    _check_columns(dataset, columns)
    dataset.opened_with = columns if columns is None or isinstance(columns, Mapping) else tuple(columns)
    if len(dataset) == 0:
        where = ", ".join(paths)
        raise StoreError("TM904", where=where, what="the dataset has no rows", fix="convert some traces first")
    return dataset


def _check_columns(dataset: Dataset, columns: Mapping[str, str] | Sequence[str] | None) -> None:
    """TM902 where a column is asked for that no shard has, TM900 for a map that would change nothing."""
    if isinstance(columns, Mapping):
        if columns and dataset.kind == "tracemask":
            what = "column names are for other tools' data, and these are shards of ours"
            raise UsageError("TM900", where=", ".join(dataset.paths), what=what, fix="leave --columns out")
        return
    for name in columns or ():
        if name not in dataset.token_columns:
            held = [source.stored_columns for source in dataset.sources if isinstance(source, OpenShard)]
            known = ", ".join(dict.fromkeys(found for names in held for found in names))
            where = ", ".join(dataset.paths)
            raise UsageError("TM902", where=where, what=f"no per-token column {name!r}", fix=f"columns here: {known}")


def _reopen(paths: tuple[str, ...], columns: Mapping[str, str] | tuple[str, ...] | None, identity: str) -> Dataset:
    dataset = open_dataset(paths[0] if len(paths) == 1 else paths, columns=columns)
    if dataset.fingerprint != identity:
        raise StoreError("TM935", where=", ".join(paths), what="the dataset was replaced", fix="open it again")
    return dataset


def _open_one(path: str, columns: Mapping[str, str] | Sequence[str] | None) -> Dataset:
    wanted = None if columns is None or isinstance(columns, Mapping) else tuple(columns)
    tree = Tree(path)
    if tree.is_file():
        shard = _try_shard(tree.blob(), wanted) if path.endswith(SHARD_SUFFIX) else None
        if shard is not None:
            blob = tree.blob()
            identity = fingerprint("shard", blob.name, blob.size())
            return Dataset([shard], kind="tracemask", paths=(path,), names=[blob.name], identity=identity)
    elif not tree.exists():
        raise UsageError("TM901", where=path, what="no such file or folder", fix="check the path")
    elif holds_dataset(open_folder(path)):
        return _open_folder(path, wanted)
    from tracemask.store.foreign import open_foreign

    mapping = columns if isinstance(columns, Mapping) else {}
    return open_foreign(path, mapping)


def _try_shard(blob: Blob, columns: tuple[str, ...] | None) -> OpenShard | None:
    """The shard that `blob` is; None where it is an Arrow file of somebody else."""
    import pyarrow as pa

    source = blob.path if blob.fs is None else blob.read()
    with blob.open() if isinstance(source, str) else io.BytesIO(source) as file:
        if file.read(6) != b"ARROW1":
            return None
    try:
        whole = pa.memory_map(source) if isinstance(source, str) else pa.py_buffer(source)
        ours = METADATA_KEY in (pa.ipc.open_file(whole).schema.metadata or {})
    except (pa.ArrowException, OSError):
        ours = True  # cut short: let the shard's own error say so
    return OpenShard(source, where=blob.where, columns=_read_columns(columns)) if ours else None


def _read_columns(columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return None if columns is None else tuple(dict.fromkeys(("token_ids", *columns)))


def _open_folder(path: str, columns: tuple[str, ...] | None) -> Dataset:
    folder = open_folder(path)
    manifest, identity = read_manifest(folder)
    sources: list[OpenShard] = []
    for entry in manifest.shards:
        check_size(folder, entry)
        where = f"{path.rstrip('/')}/{entry.name}"
        source = folder.local(entry.name) or folder.read(entry.name)
        shard = OpenShard(source, where=where, columns=_read_columns(columns))
        if shard.rows != entry.rows:
            what = f"{shard.rows} rows where the manifest states {entry.rows}"
            raise StoreError("TM508", where=where, what=what, fix="convert again with --force")
        sources.append(shard)
    _check_alike(sources)
    names = [entry.name for entry in manifest.shards]
    dataset = Dataset(sources, kind="tracemask", paths=(path,), names=names, identity=identity)
    dataset.metadata = {**manifest.metadata, **dataset.metadata}
    return dataset


def _check_alike(sources: Sequence[RowSource]) -> None:
    """TM506 unless all were rendered with one tokenizer and one template."""
    if not sources:
        return
    first = sources[0]
    for other in sources[1:]:
        for key, noun in (("tokenizer_sha256", "tokenizer"), ("template_sha256", "template")):
            mine, theirs = first.metadata.get(key), other.metadata.get(key)
            if mine != theirs:
                raise StoreError(
                    "TM506",
                    where=f"{first.where} and {other.where}",
                    what=f"shards of different {noun}s: {_short(mine)} and {_short(theirs)}",
                    fix="convert both with one tokenizer and template, or open them apart",
                )


def _short(digest: object) -> str:
    return str(digest)[:12] if digest else "none stated"


def _join(opened: list[Dataset], paths: tuple[str, ...]) -> Dataset:
    kinds = {dataset.kind for dataset in opened}
    if len(kinds) > 1:
        raise StoreError("TM501", where=", ".join(paths), what="our shards and foreign data together",
                         fix="open them apart, or convert both")  # fmt: skip
    sources = [source for dataset in opened for source in dataset.sources]
    _refuse_again(sources)
    _check_alike(sources)
    names = [shard.name for dataset in opened for shard in dataset.shards]
    identity = fingerprint(*(dataset.fingerprint for dataset in opened))
    return Dataset(sources, kind=opened[0].kind, paths=paths, names=names, identity=identity)


def _refuse_again(sources: Sequence[RowSource]) -> None:
    """TM900 where two sources are one file, however it is spelled."""
    seen: set[str] = set()
    for source in sources:
        place = real_place(source.where)
        if place in seen:
            fix = "name it once: its rows would count twice"
            raise UsageError("TM900", where=source.where, what="this file is given twice", fix=fix)
        seen.add(place)
