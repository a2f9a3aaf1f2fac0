"""Writes a dataset in the form another trainer reads (export_forms). Knows no recipe."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tracemask.core.errors import StoreError, UsageError
from tracemask.store.blob import same_place
from tracemask.store.export_files import WRITERS, remove_export
from tracemask.store.export_forms import FORMS, IGNORED, Form, InLoss
from tracemask.store.folder import open_folder
from tracemask.store.reader import Dataset
from tracemask.store.row import Row
from tracemask.store.schema import SCALAR_ALIASES, SCALARS, numpy_type, scalar_type

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(slots=True)
class Exported:
    """What an export wrote. trained: tokens in the loss; mask: the column that says so ("" where the form keeps all).

    lost: per-token columns of ours that the form has no place for.
    """

    rows: int = 0
    tokens: int = 0
    trained: int = 0
    mask: str = ""
    files: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()


def export(dataset: Dataset, out: str, *, to: str, component: str | None = None, force: bool = False) -> Exported:
    """Writes `dataset` into the folder `out`, a path or an fsspec URL, in the form `to` (export_forms.FORMS).

    force: write into a folder that is not empty; what an earlier export left there is replaced.
    component: take what is trained from weight.COMPONENT of a materialised dataset instead of from `sampled`; a row
    that is not trainable has nothing in the loss. Errors: TM902 unknown form, TM933 `out` is not empty, TM501 no column
    says what is trained, TM603 a log-prob is missing where the form cannot say so.
    """
    form = FORMS[to]
    places = {*dataset.paths, *(os.path.dirname(source.where) for source in dataset.sources)}
    if any(same_place(out, place) for place in places):
        raise UsageError("TM900", where=out, what="reading and writing the same folder", fix="give another --out")
    folder = open_folder(out)
    folder.make()
    if folder.names() and not force:
        raise StoreError("TM933", where=out, what="the folder is not empty", fix="choose another, or --force")
    done = Exported(mask=f"weight.{component}" if component else "")
    files = WRITERS[form.kind.value](folder, _schema(dataset, form), _records(dataset, form, component, done))
    remove_export(folder, but=files)
    done.files = tuple(files)
    if form.fields is not None:
        own = f"weight.{component}" if component is not None and "weight.*" in form.keeps else ""
        done.lost = tuple(name for name in dataset.token_columns if name not in (*form.keeps, own))
    return done


def in_loss(row: Row, component: str | None = None) -> tuple[InLoss, str]:
    """What is trained in `row`, and the column that says so: weight.COMPONENT, else sampled, mask or labels."""
    where = f"row {row.index}"
    if component is not None:
        weights = row.get(f"weight.{component}")
        if weights is None:
            what = f"no column weight.{component}"
            raise StoreError("TM501", where=where, what=what, fix="tracemask materialize writes it")
        return InLoss(weights != 0, weights, component), f"weight.{component}"
    for name in ("sampled", "mask", "labels"):
        values = row.get(name)
        if values is not None:
            mask = values != IGNORED if name == "labels" else values.astype(bool)
            trainable = row.scalars.get("trainable")
            return InLoss(mask & (trainable is None or bool(trainable))), name
    raise StoreError("TM501", where=where, what="no sampled, mask or labels column", fix="name a component")


def _records(dataset: Dataset, form: Form, component: str | None, done: Exported) -> Iterator[dict[str, Any]]:
    for row in dataset:
        loss = InLoss(np.zeros(0, dtype=bool))
        if form.fields is not None or component is not None:
            loss, done.mask = in_loss(row, component)
        done.rows += 1
        done.tokens += len(row)
        trained, by = loss.mask, ""
        if form.counted is not None:
            trained, by = form.counted(row, loss)
        done.mask = by or done.mask
        done.trained += int(np.count_nonzero(trained))
        yield form.record(row, loss)


def _schema(dataset: Dataset, form: Form) -> pa.Schema:
    import pyarrow as pa

    if form.fields is None:
        return _our_schema(dataset)
    fields = [(name, _type(kind)) for name, kind in form.fields.items()]
    return pa.schema(fields)


def _type(spelling: str) -> pa.DataType:
    import pyarrow as pa

    if spelling.startswith("["):
        return pa.list_(_type(spelling[1:-1]))
    return pa.bool_() if spelling == "bool" else getattr(pa, spelling)()


def _our_schema(dataset: Dataset) -> pa.Schema:
    """Scalars, then per-token columns as plain lists; types of columns that are not ours are taken from the data."""
    import pyarrow as pa

    stored = {SCALAR_ALIASES.get(name, name): kind for name, kind in SCALARS.items()}
    columns = dataset.token_columns
    fields = []
    for name in dataset.scalar_names:
        if name in columns:
            continue  # a column of this name tells more
        known = stored.get(name) if dataset.kind == "tracemask" else None
        fields.append((name, scalar_type(known) if known else pa.infer_type(dataset.scalars([name])[name])))
    dtypes = _dtypes(dataset)
    for name in columns:
        kind = dtypes[name]
        fields.append((name, pa.list_(pa.string() if kind.kind == "U" else pa.from_numpy_dtype(kind))))
    return pa.schema(fields)


def _dtypes(dataset: Dataset) -> dict[str, np.dtype[Any]]:
    """The numpy type of each per-token column, wide enough for every row."""
    found: dict[str, np.dtype[Any]] = {}
    for row in dataset:
        for name, values in row.columns.items():
            found[name] = np.result_type(found.get(name, values.dtype), values.dtype)
    for name in dataset.token_columns:
        found.setdefault(name, numpy_type(name, np.dtype("float64")))
    return found
