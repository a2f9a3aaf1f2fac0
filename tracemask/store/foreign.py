"""Datasets of other tools as rows: a file, a folder of files, or what Hugging Face saved. Knows no file format."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from tracemask.core.errors import StoreError, UsageError
from tracemask.core.fingerprint import fingerprint
from tracemask.store.blob import Blob, Tree
from tracemask.store.foreign_names import A_LOG, Names, match
from tracemask.store.reader import Dataset
from tracemask.store.records import RECORDS, Records
from tracemask.store.row import Row
from tracemask.store.shard import plain

SAVED = ("state.json", "dataset_dict.json")  # by which a folder of save_to_disk is known


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
        return [plain(name, value) for value in self._records.column(self.names.scalar_field(name))]


def open_foreign(path: str, mapping: Mapping[str, str], *, shown: str = "") -> Dataset:
    """The dataset of another tool at `path`, a path or an fsspec URL. mapping: our names to theirs.

    shown: what to call a single file instead of its path.

    TM931: no file of a known kind; TM900: several splits; TM501: no ids; TM904: empty files alone.
    """
    files = list(_files(Tree(path)))
    if not files:
        fix = f"expected a folder or a file of {', '.join(RECORDS)}"
        raise StoreError("TM931", where=path, what="neither shards of ours nor a dataset of another tool", fix=fix)
    if shown:
        files = [replace(file, where=shown) for file in files]
    opened = [RECORDS[file.suffix](file) for file in files]
    held = [k for k, records in enumerate(opened) if records.rows or records.lists or records.others]
    if not held:
        raise StoreError("TM904", where=shown or path, what="there are no rows", fix="give a dataset with rows")
    files, sources = [files[k] for k in held], [ForeignSource(opened[k], mapping) for k in held]
    names, sizes = [file.name for file in files], [file.size() for file in files]
    identity = fingerprint("foreign", names, sizes, sorted(mapping.items()))
    return Dataset(sources, kind="foreign", paths=(shown or path,), names=names, identity=identity)


def _files(tree: Tree) -> Iterator[Blob]:
    if tree.is_file():
        file = tree.blob()
        if file.suffix not in RECORDS:
            fix = f"expected {', '.join('.' + name for name in RECORDS)}; {A_LOG}"
            raise StoreError("TM931", where=tree.path, what="a file of an unknown kind", fix=fix)
        yield file
    elif tree.has(SAVED[0]):
        yield from _saved(tree)
    elif tree.has(SAVED[1]):
        splits = [name for name in _splits(tree) if tree.has(f"{name}/state.json")]
        if len(splits) != 1:
            names = ", ".join(splits) or "none"
            raise UsageError("TM900", where=tree.path, what=f"splits: {names}", fix=f"name one: {tree.path}/SPLIT")
        yield from _saved(Tree(f"{tree.path.rstrip('/')}/{splits[0]}"))
    else:
        yield from sorted(_of_one_kind(tree), key=lambda file: file.name.split("/"))


def _of_one_kind(tree: Tree) -> Iterator[Blob]:
    first: Blob | None = None
    for file in tree.files(lambda name: _suffix(name) in RECORDS):
        first = first or file
        if file.suffix != first.suffix:
            what = f"files of several kinds: {first.name} and {file.name}"
            raise UsageError("TM900", where=tree.path, what=what, fix="name the files of one kind")
        yield file


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.removeprefix(".").lower()


def _splits(tree: Tree) -> list[str]:
    """The splits that a DatasetDict of save_to_disk lists."""
    try:
        listed = json.loads(tree.blob("dataset_dict.json").read())["splits"]
        return sorted(name for name in listed if isinstance(name, str))
    except (ValueError, KeyError, TypeError):
        raise StoreError("TM931", where=f"{tree.path}/dataset_dict.json", what="not a list of splits",
                         fix="save the dataset again") from None  # fmt: skip


def _saved(tree: Tree) -> Iterator[Blob]:
    """The files that a state of save_to_disk lists."""
    try:
        state = json.loads(tree.blob("state.json").read())
        yield from (tree.blob(entry["filename"]) for entry in state["_data_files"])
    except (ValueError, KeyError, TypeError):
        raise StoreError("TM931", where=f"{tree.path}/state.json", what="not a state of save_to_disk",
                         fix="save the dataset again") from None  # fmt: skip
