"""Writes rows into one shard and commits it: temporary file, fsync, sha256, rename, receipt. Knows no template."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from tracemask.core.errors import StoreError
from tracemask.store.columns import Columns
from tracemask.store.counts import Counts
from tracemask.store.folder import Folder, open_folder, put
from tracemask.store.manifest import Notes, Receipt, Skip, receipt_name, seal
from tracemask.store.row import Row
from tracemask.store.rows import check_lengths
from tracemask.store.schema import SPANS, TOKEN_COLUMNS, Profile, cast, shard_schema
from tracemask.store.sink import Sink

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_TOKENS = 1 << 19  # tokens that become columns at once: their memory is small enough to be reused
COMPACT_TOKENS = 1 << 13  # tokens that are compressed together: short rows share what a batch costs


class ShardWriter:
    """One shard: `add` rows, then `commit`. Nothing is visible before; leaving the context without it removes all.

    name: file name ending in .arrow. metadata: `schema.make_metadata(...)`. plan, span: what the receipt states.
    Rows are held until `commit`, not copied: a shard is the unit of memory, and what a row holds must stay as it is
    until then. extra: per-token columns (name → numpy dtype) and
    scalars: scalar columns (name → Arrow type) that the shard has even where no row holds them.
    """

    def __init__(
        self,
        folder: Folder | str,
        name: str,
        *,
        metadata: dict[str, Any],
        plan: str = "",
        span: tuple[int, int] = (0, 0),
        extra: Mapping[str, str | np.dtype[Any]] | None = None,
        scalars: Mapping[str, pa.DataType] | None = None,
    ) -> None:
        self._folder = open_folder(folder) if isinstance(folder, str) else folder
        self._name, self._plan, self.span = name, plan, span
        self._metadata = metadata
        self._compact = metadata.get("profile") == Profile.COMPACT
        self._extra = {key: np.dtype(kind) for key, kind in (extra or {}).items()}
        self._more_scalars = dict(scalars or {})
        self._rows: list[Row] = []
        self._sink: Sink | None = None
        self.last_trace: str | None = None

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.abort()

    def __len__(self) -> int:
        """Rows taken so far."""
        return len(self._rows)

    def add(self, row: Row) -> None:
        """Takes `row`. StoreError TM101 on unequal lengths, TM501 on a missing column or a value that does not fit."""
        columns = row.columns
        if not _is_plain(columns):
            columns = self._cast(row)
            self._note_types(columns)
        self._rows.append(Row(len(self._rows), columns, row.scalars))
        self.last_trace = row.scalars.get("trace_id")

    def _cast(self, row: Row) -> dict[str, np.ndarray]:
        where = str(row.scalars.get("id") or f"row {len(self._rows)}")
        missing = [name for name in TOKEN_COLUMNS if name not in row.columns]
        if missing:
            what = f"row lacks {', '.join(missing)}"
            raise StoreError("TM501", where=where, what=what, fix="give every fixed column")
        columns = {name: cast(name, values, where=where) for name, values in row.columns.items()}
        check_lengths(columns, where=where)
        return columns

    def _note_types(self, columns: Mapping[str, np.ndarray]) -> None:
        """A column beyond the fixed ones has the type that holds all its rows."""
        for name, values in columns.items():
            if name == SPANS:
                self._extra[name] = values.dtype
            elif name not in TOKEN_COLUMNS:
                self._extra[name] = np.result_type(self._extra.get(name, values.dtype), values.dtype)

    def commit(self, *, skipped: Sequence[Skip] = (), reading: Notes | None = None) -> Receipt:
        """Closes the shard, makes it visible under its name, then writes its receipt; returns the receipt."""
        self._sink = self._folder.sink(self._name)
        self._write()
        counts = Counts.of(self._rows)  # while the last bytes go to the disk
        size, sha256 = self._sink.commit()
        self._sink = None
        receipt = Receipt(
            name=self._name,
            bytes=size,
            sha256=sha256,
            plan=self._plan,
            range=self.span,
            counts=counts,
            skipped=list(skipped),
            reading=reading or Notes(),
        )
        put(self._folder, receipt_name(self._name), seal(receipt))
        return receipt

    def abort(self) -> None:
        """Forgets the rows and removes the temporary file; harmless after `commit`."""
        if self._sink is not None:
            self._sink.abort()
            self._sink = None
        self._rows = []

    def _schema(self) -> pa.Schema:
        whole = _batches(self._rows, limit=BATCH_TOKENS)
        pieces = [len(piece) for rows in whole for piece in _batches(rows, limit=COMPACT_TOKENS)]
        batches = pieces if self._compact else None
        return shard_schema(self._extra, self._metadata, scalars=self._more_scalars, batches=batches)

    def _write(self) -> None:
        import pyarrow as pa

        assert self._sink is not None
        schema = self._schema()
        options = pa.ipc.IpcWriteOptions(compression="lz4" if self._compact else None, use_threads=False)
        columns = Columns(schema)
        room = 0 if self._compact else sum(map(len, self._rows)) * _TOKEN_BITS // 8
        with self._sink.stream(at_least=room) as out, pa.ipc.new_file(out, schema, options=options) as file:
            for rows in _batches(self._rows, limit=BATCH_TOKENS):
                batch = columns.of(rows)
                start = 0
                for piece in _batches(rows, limit=COMPACT_TOKENS) if self._compact else [rows]:
                    file.write_batch(batch.slice(start, len(piece)))
                    start += len(piece)
                self._sink.advance()


_PLAIN = {name: np.dtype(kind) for name, kind in TOKEN_COLUMNS.items()}
_TOKEN_BITS = sum(1 if kind.kind == "b" else 8 * kind.itemsize for kind in _PLAIN.values())


def _is_plain(columns: Mapping[str, np.ndarray]) -> bool:
    """Whether there are just the fixed columns, in their types and of one length, as the renderer gives them."""
    if columns.keys() != _PLAIN.keys():
        return False
    shape = (len(columns["token_ids"]),)
    return all(columns[name].shape == shape and columns[name].dtype is kind for name, kind in _PLAIN.items())


def _batches(rows: list[Row], *, limit: int) -> Iterator[list[Row]]:
    """Runs of rows of at most `limit` tokens together; a longer row stands alone."""
    batch: list[Row] = []
    held = 0
    for row in rows:
        if batch and held + len(row) > limit:
            yield batch
            batch, held = [], 0
        batch.append(row)
        held += len(row)
    if batch:
        yield batch
