"""Datasets of other tools: Hugging Face folders, Parquet, Arrow, JSON lines. Knows no row of ours.

Files are read lazily: a Parquet row group, a mapped Arrow table or one JSON line at a time.
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tracemask.core.errors import StoreError, UsageError
from tracemask.core.fingerprint import fingerprint
from tracemask.core.registry import Table
from tracemask.store.foreign_names import Names, is_numbers, is_token_name, match
from tracemask.store.reader import Dataset
from tracemask.store.row import Row

if TYPE_CHECKING:
    import pyarrow as pa

_LOOK = 64  # JSON lines looked at for the names and kinds of fields
_KEEP = 4  # Parquet row groups held


class Records(ABC):
    """One file's records, decoded when asked for: the part of a source that a file format provides."""

    where: str
    rows: int
    lists: list[str]  # fields that hold one list of numbers a record
    others: list[str]  # every other field

    @abstractmethod
    def get(self, i: int) -> Mapping[str, Any]:
        """Record `i`: lists as numpy arrays or Python lists, scalars as Python values."""

    def column(self, name: str) -> list[Any]:
        """One field of every record."""
        return [self.get(i).get(name) for i in range(self.rows)]


class ForeignSource:
    """A foreign file as rows."""

    def __init__(self, records: Records, mapping: Mapping[str, str]) -> None:
        self.where, self.rows = records.where, records.rows
        self.metadata: dict[str, Any] = {}
        self._records = records
        self.names: Names = match(records.lists, records.others, mapping, where=records.where)
        self.token_columns = self.names.token_columns

    @property
    def scalar_names(self) -> list[str]:
        return self.names.scalar_names

    def row(self, i: int, *, index: int, writable: bool = False) -> Row:
        row = self.names.row(self._records.get(i), index=index, where=f"{self.where}:{i}")
        if writable:
            row.columns = {name: values.copy() for name, values in row.columns.items()}
        return row

    def scalar(self, name: str) -> list[Any]:
        return self._records.column(self.names.scalar_field(name))


class ArrowRecords(Records):
    """A memory-mapped Arrow table (file or stream format; Hugging Face writes streams)."""

    def __init__(self, path: str) -> None:
        import pyarrow as pa

        self.where = path
        try:
            source = pa.memory_map(path)
            with open(path, "rb") as file:
                whole = file.read(6) == b"ARROW1"
            reader = pa.ipc.open_file(source) if whole else pa.ipc.open_stream(source)
            self._table = reader.read_all()
        except (pa.ArrowInvalid, OSError) as error:
            raise StoreError(
                "TM508", where=path, what=f"not a whole Arrow file: {error}", fix="write it again"
            ) from None
        self.rows = self._table.num_rows
        self.lists, self.others = _kinds(self._table.schema)

    def get(self, i: int) -> Mapping[str, Any]:
        return {name: _value(self._table.column(name)[i]) for name in self._table.column_names}

    def column(self, name: str) -> list[Any]:
        return self._table.column(name).to_pylist() if name in self._table.column_names else [None] * self.rows


class ParquetRecords(Records):
    """A Parquet file, a row group at a time."""

    def __init__(self, path: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.where = path
        try:
            self._file = pq.ParquetFile(path, memory_map=True)
        except (pa.ArrowInvalid, OSError) as error:
            raise StoreError(
                "TM508", where=path, what=f"not a whole Parquet file: {error}", fix="write it again"
            ) from None
        meta = self._file.metadata
        self._starts = np.cumsum([0, *(meta.row_group(k).num_rows for k in range(meta.num_row_groups))])
        self.rows = int(self._starts[-1])
        self.lists, self.others = _kinds(self._file.schema_arrow)
        self._groups: OrderedDict[int, pa.Table] = OrderedDict()

    def get(self, i: int) -> Mapping[str, Any]:
        k = int(np.searchsorted(self._starts, i, side="right")) - 1
        table = self._groups.get(k)
        if table is None:
            table = self._groups[k] = self._file.read_row_group(k)
            if len(self._groups) > _KEEP:
                self._groups.popitem(last=False)
        at = i - int(self._starts[k])
        return {name: _value(table.column(name)[at]) for name in table.column_names}

    def column(self, name: str) -> list[Any]:
        if name not in self._file.schema_arrow.names:
            return [None] * self.rows
        return self._file.read(columns=[name]).column(0).to_pylist()


class JsonRecords(Records):
    """JSON lines: the byte where each begins is kept, a line is decoded when asked for."""

    def __init__(self, path: str) -> None:
        self.where = path
        self._lines: list[tuple[int, int]] = []  # offset, 1-based line
        offset = 0
        with open(path, "rb") as file:
            for line, raw in enumerate(file, 1):
                if not raw.isspace():
                    self._lines.append((offset, line))
                offset += len(raw)
        self.rows = len(self._lines)
        self._file = open(path, "rb")  # noqa: SIM115  (lives as long as the dataset)
        self.lists, self.others = self._fields()

    def __del__(self) -> None:
        file = getattr(self, "_file", None)
        if file is not None:
            file.close()

    def _fields(self) -> tuple[list[str], list[str]]:
        kinds: dict[str, bool | None] = {}  # None: nothing seen yet
        for i in range(min(self.rows, _LOOK)):
            for name, value in self.get(i).items():
                if value is None or value == []:
                    kinds.setdefault(name, None)
                else:
                    kinds[name] = kinds.get(name) is not False and is_numbers(value)
        lists = [name for name, numeric in kinds.items() if numeric or (numeric is None and is_token_name(name))]
        return lists, [name for name in kinds if name not in lists]

    def get(self, i: int) -> Mapping[str, Any]:
        offset, line = self._lines[i]
        self._file.seek(offset)
        raw = self._file.readline().removeprefix(b"\xef\xbb\xbf")
        try:
            value = json.loads(raw)
        except ValueError as error:
            raise StoreError(
                "TM910", where=f"{self.where}:{line}", what=f"invalid JSON: {error}", fix="repair it"
            ) from None
        if not isinstance(value, dict):
            raise StoreError("TM501", where=f"{self.where}:{line}", what="not a JSON object", fix="one object a line")
        return value


def _kinds(schema: pa.Schema) -> tuple[list[str], list[str]]:
    """Names of the fields that hold lists of numbers, and of all others."""
    lists = [field.name for field in schema if _is_number_list(field.type)]
    return lists, [field.name for field in schema if field.name not in lists]


def _is_number_list(kind: pa.DataType) -> bool:
    import pyarrow.types as kinds

    if not (kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind)):
        return False
    return kinds.is_integer(kind.value_type) or kinds.is_floating(kind.value_type) or kinds.is_boolean(kind.value_type)


def _value(scalar: Any) -> Any:
    """An Arrow scalar: number lists as arrays (nulls as NaN), the rest as Python values."""
    if _is_number_list(scalar.type):
        return None if scalar.values is None else scalar.values.to_numpy(zero_copy_only=False)
    return scalar.as_py()


RECORDS: Table[Callable[[str], Records]] = Table(
    "foreign file",
    arrow=ArrowRecords,
    parquet=ParquetRecords,
    jsonl=JsonRecords,
    ndjson=JsonRecords,
)


def open_foreign(path: str, mapping: Mapping[str, str]) -> Dataset:
    """The dataset of another tool at `path`. mapping: our names to theirs.

    TM931: no file of a known kind; TM900: several splits; TM501: no ids.
    """
    files = list(_files(Path(path)))
    if not files:
        fix = f"expected a folder or a file of {', '.join(RECORDS)}"
        raise StoreError("TM931", where=path, what="neither shards of ours nor a dataset of another tool", fix=fix)
    sources = [ForeignSource(RECORDS[_suffix(file)](str(file)), mapping) for file in files]
    root = Path(path) if Path(path).is_dir() else Path(path).parent
    names = [file.relative_to(root).as_posix() for file in files]
    sizes = [os.path.getsize(file) for file in files]
    identity = fingerprint("foreign", names, sizes, sorted(mapping.items()))
    return Dataset(sources, kind="foreign", paths=(path,), names=names, identity=identity)


def _suffix(file: Path) -> str:
    return file.suffix.removeprefix(".").lower()


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        if _suffix(path) not in RECORDS:
            fix = f"rename it to one of {', '.join('.' + name for name in RECORDS)}"
            raise StoreError("TM931", where=str(path), what="a file of an unknown kind", fix=fix)
        yield path
    elif (path / "state.json").is_file():
        try:
            state = json.loads((path / "state.json").read_bytes())
            yield from (path / entry["filename"] for entry in state["_data_files"])
        except (ValueError, KeyError, TypeError):
            raise StoreError("TM931", where=f"{path}/state.json", what="not a state of save_to_disk",
                             fix="save the dataset again") from None  # fmt: skip
    elif (path / "dataset_dict.json").is_file():
        splits = sorted(file.parent for file in path.glob("*/state.json"))
        if len(splits) != 1:
            names = ", ".join(split.name for split in splits) or "none"
            raise UsageError("TM900", where=str(path), what=f"splits: {names}", fix=f"name one: {path}/SPLIT")
        yield from _files(splits[0])
    else:
        found = sorted(file for file in path.rglob("*") if file.is_file() and _suffix(file) in RECORDS)
        kinds = {_suffix(file) for file in found}
        if len(kinds) > 1:
            raise UsageError("TM900", where=str(path), what=f"files of several kinds: {', '.join(sorted(kinds))}",
                             fix="name the files of one kind")  # fmt: skip
        yield from found
