"""New shards from existing ones: columns added or rows changed, by the commit protocol. Knows no rule and no recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tracemask.core.errors import StoreError, UsageError
from tracemask.core.fingerprint import fingerprint
from tracemask.store.blob import same_place
from tracemask.store.commit import finish, prepare, shard_name, valid_receipt
from tracemask.store.folder import Folder, open_folder
from tracemask.store.lock import locked
from tracemask.store.manifest import Manifest, Receipt
from tracemask.store.reader import Dataset
from tracemask.store.row import Row
from tracemask.store.schema import SCALARS, SPANS, Profile, is_token_field
from tracemask.store.shard import OpenShard
from tracemask.store.writer import ShardWriter

if TYPE_CHECKING:
    import pyarrow as pa

Edit = Callable[[Row], Row | None]
Columns = Callable[[Row], Mapping[str, np.ndarray]]


def add_columns(
    dataset: Dataset,
    out: str,
    columns: Columns,
    *,
    config: dict[str, Any],
    recipe: dict[str, Any] | None = None,
    profile: Profile | str | None = None,
    force: bool = False,
) -> Manifest:
    """Writes the dataset again at `out` with further per-token columns (or others in place of those it has).

    columns: row → {name: [T]}, called once a row in stored order, except for shards that an interrupted run finished;
    so it must depend on the row alone (and on what was computed before). config: says what the columns are, as JSON;
    it enters the fingerprint. recipe: stored in the metadata where weights are materialised.
    """

    def edit(row: Row) -> Row:
        return Row(row.index, {**row.columns, **columns(row)}, row.scalars)

    change = {} if recipe is None else {"recipe": recipe}
    return rewrite(dataset, out, edit, config=config, metadata=change, profile=profile, force=force)


def must_be_shards(dataset: Dataset) -> None:
    """StoreError TM501 for another tool's dataset: it lacks what a shard must say of a token."""
    if dataset.kind != "tracemask":
        what = "another tool's dataset has no authors or parts, which shards must have"
        fix = "convert the traces, and derive from their shards"
        raise StoreError("TM501", where=", ".join(dataset.paths), what=what, fix=fix)


def rewrite(
    dataset: Dataset,
    out: str,
    edit: Edit,
    *,
    config: dict[str, Any],
    metadata: Mapping[str, Any] | None = None,
    profile: Profile | str | None = None,
    force: bool = False,
) -> Manifest:
    """Writes the dataset again at `out`, each row as `edit` gives it back; None leaves a row out.

    One shard becomes one shard, so an interrupted run is continued. profile: default that of the dataset. TM501 for
    another tool's dataset; TM933, TM932 as convert.
    """
    must_be_shards(dataset)
    if any(same_place(out, path) for path in dataset.paths):
        raise UsageError("TM900", where=out, what="reading and writing the same folder", fix="give another --out")
    meta = {**dataset.metadata, **(metadata or {})}
    if profile is not None:
        meta["profile"] = Profile(profile).value
    folder = open_folder(out)
    plan = fingerprint("derived", dataset.fingerprint, meta, config)
    with locked(folder, force=force):
        prepare(folder, plan=plan, force=force)
        receipts = [_one(dataset, k, folder, edit, meta, plan) for k in range(len(dataset.sources))]
        derived = {"derived_from": dataset.fingerprint, **config}
        return finish(folder, plan=plan, receipts=receipts, metadata=meta, config=derived)


def _one(dataset: Dataset, k: int, folder: Folder, edit: Edit, metadata: dict[str, Any], plan: str) -> Receipt:
    source = dataset.sources[k]
    start = sum(shard.rows for shard in dataset.shards[:k])
    name, span = shard_name(k, fingerprint(plan, k)), (start, start + source.rows)
    if (done := valid_receipt(folder, name, plan=plan, span=span)) is not None:
        return done
    more = _more_scalars(source) if isinstance(source, OpenShard) else {}
    with ShardWriter(folder, name, metadata=metadata, plan=plan, span=span, scalars=more) as writer:
        for row in dataset.rows_of_shard(k):
            if (edited := edit(row)) is not None:
                writer.add(edited)
        return writer.commit()


def _more_scalars(shard: OpenShard) -> dict[str, pa.DataType]:
    """Scalar columns beyond the fixed ones."""
    fixed = {*SCALARS, SPANS}
    return {field.name: field.type for field in shard.schema if field.name not in fixed and not is_token_field(field)}
