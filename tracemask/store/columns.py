"""Rows as the Arrow columns of a record batch. Knows no file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        self._plan = [(field, str(field.name), is_token_field(field)) for field in schema]
        self._memory: dict[str, np.ndarray] = {}

    def of(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """The columns of `rows`."""
        import pyarrow as pa

        offsets = np.zeros(len(rows) + 1, dtype=np.int64)
        np.cumsum(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)), out=offsets[1:])
        whole = pa.array(offsets)
        scalars = [row.scalars for row in rows]
        columns = [row.columns for row in rows]
        arrays = [
            self._token_array(field, name, columns, whole)
            if per_token
            else _scalar_array(field, SCALAR_ALIASES.get(name, name), scalars, columns)
            for field, name, per_token in self._plan
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _token_array(
        self, field: pa.Field, name: str, columns: Sequence[Mapping[str, np.ndarray]], offsets: pa.Array
    ) -> pa.Array:
        """One large list a row; a row without the column becomes null. offsets: where rows that have it start."""
        import pyarrow as pa

        present = [part for held in columns if (part := held.get(name)) is not None]
        mask = None
        if len(present) != len(columns):
            missing = np.fromiter((name not in held for held in columns), dtype=bool, count=len(columns))
            lengths = np.where(missing, 0, np.diff(offsets))
            offsets, mask = pa.array(np.concatenate([[0], np.cumsum(lengths)])), pa.array(missing)
        kind = field.type.value_type
        flat = self._joined(name, present, np.dtype(kind.to_pandas_dtype()))
        size = len(flat)
        if kind == pa.bool_():
            flat = np.packbits(flat, bitorder="little")
        values = pa.Array.from_buffers(kind, size, [None, pa.py_buffer(flat)], null_count=0)
        return pa.LargeListArray.from_arrays(offsets, values, type=field.type, mask=mask)

    def _joined(self, name: str, parts: Sequence[np.ndarray], kind: np.dtype[Any]) -> np.ndarray:
        """The parts one after the other, in the memory of column `name`."""
        size = sum(map(len, parts))
        found = self._memory.get(name)
        if found is None or len(found) < size or found.dtype != kind:
            found = self._memory[name] = np.empty(size, kind)
        return np.concatenate(parts, out=found[:size]) if parts else found[:0]


def _scalar_array(
    field: pa.Field, name: str, scalars: Sequence[Mapping[str, Any]], columns: Sequence[Mapping[str, np.ndarray]]
) -> pa.Array:
    import pyarrow as pa

    if name == SPANS:
        values: list[Any] = [to_spans(held[name]) if name in held else None for held in columns]
    else:
        values = [held.get(name) for held in scalars]
    if name == "rewards":
        values = [None if v is None else [{"name": key, **reward} for key, reward in sorted(v.items())] for v in values]
    try:
        return pa.array(values, type=field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as error:
        where = f"{scalars[0].get('id')}…{scalars[-1].get('id')}"
        what = f"scalar {name!r}: {error}"
        raise StoreError("TM501", where=where, what=what, fix="check the value's type") from error
