"""Rows as the Arrow columns of a record batch. Knows no file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tracemask.core.errors import StoreError
from tracemask.store.row import Row
from tracemask.store.schema import SCALAR_ALIASES, SPANS, is_token_field
from tracemask.store.spans import to_spans

if TYPE_CHECKING:
    import pyarrow as pa


class Columns:
    """Makes record batches of `schema`.

    Their memory is shared by all batches, since fresh pages cost several times what the copy into them does: a batch
    must be written before the next is made.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._plan = [(field, is_token_field(field)) for field in schema]
        self._memory: dict[str, np.ndarray] = {}

    def of(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """The columns of `rows`."""
        import pyarrow as pa

        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)), out=offsets[1:])
        whole = pa.array(offsets)
        arrays = [
            self._token_array(field, rows, whole) if per_token else _scalar_array(field, rows)
            for field, per_token in self._plan
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _token_array(self, field: pa.Field, rows: Sequence[Row], offsets: pa.Array) -> pa.Array:
        """One large list a row; a row without the column becomes null. offsets: where rows that have it start."""
        import pyarrow as pa

        name = str(field.name)
        present = [part for row in rows if (part := row.columns.get(name)) is not None]
        mask = None
        if len(present) != len(rows):
            missing = np.fromiter((name not in row.columns for row in rows), dtype=bool, count=len(rows))
            lengths = np.where(missing, 0, np.diff(offsets))
            offsets, mask = pa.array(np.concatenate([[0], np.cumsum(lengths)])), pa.array(missing)
        kind = field.type.value_type
        stored = np.dtype(kind.to_pandas_dtype())
        if kind == pa.bool_():
            flat = self._joined(name, present, stored)
            packed = pa.py_buffer(np.packbits(flat, bitorder="little"))  # pa.array takes several times as long
            values = pa.Array.from_buffers(kind, len(flat), [None, packed], null_count=0)
        else:
            values = pa.array(self._joined(name, present, stored), type=kind, from_pandas=False)
        return pa.LargeListArray.from_arrays(offsets, values, type=field.type, mask=mask)

    def _joined(self, name: str, parts: Sequence[np.ndarray], kind: np.dtype[Any]) -> np.ndarray:
        """The parts one after the other, in the memory of column `name`."""
        size = sum(map(len, parts))
        found = self._memory.get(name)
        if found is None or len(found) < size or found.dtype != kind:
            found = self._memory[name] = np.empty(size, kind)
        return np.concatenate(parts, out=found[:size]) if parts else found[:0]


def _scalar_array(field: pa.Field, rows: Sequence[Row]) -> pa.Array:
    import pyarrow as pa

    name = SCALAR_ALIASES.get(str(field.name), str(field.name))
    if name == SPANS:
        values: list[Any] = [to_spans(row.columns[name]) if name in row.columns else None for row in rows]
    else:
        values = [row.scalars.get(name) for row in rows]
    if name == "rewards":
        values = [None if v is None else [{"name": key, **reward} for key, reward in sorted(v.items())] for v in values]
    try:
        return pa.array(values, type=field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
        where = f"{rows[0].scalars.get('id')}…{rows[-1].scalars.get('id')}"
        what = f"scalar {name!r}: {error}"
        raise StoreError("TM501", where=where, what=what, fix="check the value's type") from error
