"""Lays records down as Parquet, JSON lines or a Hugging Face folder, atomically. Knows no form and no row."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from tracemask.core.errors import StoreError
from tracemask.core.registry import Table
from tracemask.store.folder import Folder, put, sink_of

if TYPE_CHECKING:
    import pyarrow as pa

Records = Iterator[Mapping[str, Any]]
_ROWS_AT_ONCE = 512
_PARQUET, _JSONL = "part-00000.parquet", "rows.jsonl"
_HF, _INFO, _STATE = "data-00000-of-00001.arrow", "dataset_info.json", "state.json"
_FINGERPRINT = "tracemask"  # by which a state.json of ours is known


def remove_export(folder: Folder, *, but: Sequence[str]) -> None:
    """Removes what an earlier export left beside `but`: two forms in one folder would be read as one dataset."""
    names = folder.names()
    for name in (_PARQUET, _JSONL):
        if name in names and name not in but:
            folder.remove(name)
    if _STATE not in but and _STATE in names and f'"_fingerprint": "{_FINGERPRINT}"'.encode() in folder.read(_STATE):
        for name in (_STATE, _INFO, _HF):
            folder.remove(name)


def parquet(folder: Folder, schema: pa.Schema, records: Records) -> list[str]:
    """One Parquet file."""
    import pyarrow.parquet as pq

    name = _PARQUET
    with sink_of(folder, name) as sink, sink.stream() as out, pq.ParquetWriter(out, schema) as writer:
        for batch in _batches(schema, records):
            writer.write_batch(batch)
    return [name]


def hf(folder: Folder, schema: pa.Schema, records: Records) -> list[str]:
    """A folder that datasets.load_from_disk opens: an Arrow stream and two small JSON files."""
    import pyarrow as pa

    name = _HF
    with sink_of(folder, name) as sink, sink.stream() as out, pa.ipc.new_stream(out, schema) as writer:
        for batch in _batches(schema, records):
            writer.write_batch(batch)
    state = {"_data_files": [{"filename": name}], "_fingerprint": _FINGERPRINT, "_format_columns": None,
             "_format_kwargs": {}, "_format_type": None, "_output_all_columns": False, "_split": None}  # fmt: skip
    put(folder, _INFO, b"{}\n")
    put(folder, _STATE, (json.dumps(state, indent=1, sort_keys=True) + "\n").encode())
    return [name, _INFO, _STATE]


def jsonl(folder: Folder, schema: pa.Schema, records: Records) -> list[str]:
    """One JSON object a line; NaN becomes null."""
    name = _JSONL
    with sink_of(folder, name) as sink:
        for record in records:
            plain = {key: _plain(value) for key, value in record.items()}
            sink.write((json.dumps(plain, ensure_ascii=True, allow_nan=False) + "\n").encode())
    return [name]


WRITERS: Table[Callable[[Folder, pa.Schema, Records], list[str]]] = Table(
    "export file", parquet=parquet, hf=hf, jsonl=jsonl
)


def _batches(schema: pa.Schema, records: Records) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    while chunk := list(islice(records, _ROWS_AT_ONCE)):
        arrays = [_array([record.get(field.name) for record in chunk], field) for field in schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _array(values: list[Any], field: pa.Field) -> pa.Array:
    import pyarrow as pa

    if field.name == "rewards":
        values = [
            [{"name": key, **one} for key, one in sorted(v.items())] if isinstance(v, dict) else v for v in values
        ]
    if pa.types.is_list(field.type):
        primitive = pa.types.is_primitive(field.type.value_type)
        kind = field.type.value_type.to_pandas_dtype() if primitive else object
        values = [value.astype(kind, copy=False) if isinstance(value, np.ndarray) else value for value in values]
    try:
        return pa.array(values, type=field.type, from_pandas=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise StoreError("TM501", what=f"column {field.name!r}: {error}", fix="export to jsonl") from None


def _plain(value: Any) -> Any:
    """A JSON value; arrays become lists, NaN null."""
    if isinstance(value, np.ndarray):
        out: list[Any] = value.tolist()
        if value.dtype.kind == "f":
            return [None if item != item else item for item in out]
        return out
    if isinstance(value, float) and value != value:
        return None
    return value
