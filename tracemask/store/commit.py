"""Makes a folder of committed shards a dataset: lock, clean up, manifest last. Knows no trace and no engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tracemask.core.errors import StoreError
from tracemask.core.fingerprint import fingerprint
from tracemask.store.counts import Counts
from tracemask.store.folder import Folder, open_folder, put
from tracemask.store.lock import LOCK, locked
from tracemask.store.manifest import (
    MANIFEST,
    RECEIPT_SUFFIX,
    SHARD_SUFFIX,
    Input,
    Manifest,
    Notes,
    Receipt,
    holds_dataset,
    is_left_over,
    is_ours,
    read_receipt,
    receipt_name,
    seal,
    shard_entry,
    unseal,
)
from tracemask.store.row import Row
from tracemask.store.writer import ShardWriter


def shard_name(index: int, plan: str) -> str:
    """The deterministic name of shard `index` under a plan (fingerprint of inputs, configuration and range)."""
    return f"shard-{index:05d}-{plan[:12]}{SHARD_SUFFIX}"


def finish(
    folder: Folder,
    *,
    plan: str,
    receipts: Sequence[Receipt],
    metadata: dict[str, Any],
    config: dict[str, Any] | None = None,
    inputs: Sequence[Input] = (),
) -> Manifest:
    """Writes the manifest from the receipts, in their order; the dataset exists from then on.

    What a killed worker of this run left is removed first; a zombie that still writes then fails at its rename.
    """
    sweep(folder)
    counts = Counts()
    reading = Notes()
    for receipt in receipts:
        counts.add(receipt.counts)
        reading.add(receipt.reading)
    manifest = Manifest(
        plan=plan,
        config=config or {},
        metadata=metadata,
        inputs=list(inputs),
        shards=[shard_entry(receipt) for receipt in receipts],
        counts=counts,
        skipped=[skip for receipt in receipts for skip in receipt.skipped],
        reading=reading,
    )
    put(folder, MANIFEST, seal(manifest))
    return manifest


def prepare(folder: Folder, *, plan: str, force: bool = False) -> None:
    """Makes the folder ready for a plan: refuses another dataset, or files that are none (TM933), unless `force`;
    removes what a kill left.

    Call under the lock. Only files that this store names are ever removed, and no manifest.json of another tool.
    """
    folder.make()
    _refuse_strangers(folder, force=force)
    if force:
        sweep(folder)
        remove_dataset(folder)
        return
    other = _other_plan(folder, plan)
    if other:
        raise StoreError(
            "TM933",
            where=f"{folder.path}/{other}",
            what="the folder holds a dataset of other inputs or another configuration",
            fix="choose another folder, or --force to replace it",
        )
    sweep(folder)


def _refuse_strangers(folder: Folder, *, force: bool) -> None:
    """TM933 where the folder holds files and none of ours; `force` writes beside them."""
    names = [name for name in folder.names() if name != LOCK]
    if not names or holds_dataset(folder):
        return
    if MANIFEST in names:
        what, fix = "manifest.json here is of another tool", "choose another folder"
        raise StoreError("TM933", where=folder.path, what=what, fix=fix)
    if not force:
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        what = f"the folder is not empty and holds no dataset: {shown}"
        fix = "choose another folder, or --force to write beside them"
        raise StoreError("TM933", where=folder.path, what=what, fix=fix)


def sweep(folder: Folder) -> None:
    """Removes what killed writers left."""
    for name in folder.names():
        if is_left_over(name):
            folder.remove(name)


def remove_dataset(folder: Folder) -> None:
    """Removes manifest, receipts and shards, the manifest first."""
    names = folder.names()
    ours = [name for name in names if is_ours(name) or name == MANIFEST]
    for name in sorted(ours, key=lambda name: (name != MANIFEST, not name.endswith(RECEIPT_SUFFIX), name)):
        folder.remove(name)


def _other_plan(folder: Folder, plan: str) -> str | None:
    """The first document in the folder that states another plan."""
    for name in folder.names():
        if name != MANIFEST and not name.endswith(RECEIPT_SUFFIX):
            continue
        try:
            data = folder.read(name)
            document = unseal(Manifest, data, where=name) if name == MANIFEST else unseal(Receipt, data, where=name)
            if document.plan != plan:
                return name
        except StoreError:
            continue  # broken: valid_receipt refuses it later and its range is done again
    return None


def valid_receipt(folder: Folder, shard: str, *, plan: str, span: tuple[int, int]) -> Receipt | None:
    """The receipt of a shard that is whole, hash included; None where its range must be done (again)."""
    if folder.size(shard) is None or folder.size(receipt_name(shard)) is None:
        return None
    try:
        receipt = read_receipt(folder, shard)
    except StoreError:
        return None
    good = receipt.plan == plan and receipt.range == span and receipt.bytes == folder.size(shard)
    return receipt if good and folder.sha256(shard) == receipt.sha256 else None


def write_dataset(
    out: str,
    rows: Iterable[Row],
    *,
    metadata: dict[str, Any],
    rows_per_shard: int = 4096,
    force: bool = False,
    config: dict[str, Any] | None = None,
) -> Manifest:
    """Writes ready rows as a dataset; a killed write starts over. metadata: `schema.make_metadata(...)`.

    rows: each has memory of its own, which stays as it is until its shard is written.
    A shard closes at the first change of trace_id once it has `rows_per_shard` rows: a trace is never split.
    """
    folder = open_folder(out)
    plan = fingerprint("rows", metadata, rows_per_shard, config or {})
    with locked(folder):
        prepare(folder, plan=plan, force=force)
        remove_dataset(folder)
        receipts: list[Receipt] = []
        writer: ShardWriter | None = None
        try:
            for index, row in enumerate(rows):
                trace = row.scalars.get("trace_id")
                if writer is not None and len(writer) >= rows_per_shard and trace != writer.last_trace:
                    receipts.append(writer.commit())
                    writer = None
                if writer is None:
                    name = shard_name(len(receipts), plan)
                    writer = ShardWriter(folder, name, metadata=metadata, plan=plan, span=(index, index))
                writer.add(row)
                writer.span = (writer.span[0], index + 1)
            if writer is not None:
                receipts.append(writer.commit())
        finally:
            if writer is not None:
                writer.abort()
        return finish(folder, plan=plan, receipts=receipts, metadata=metadata, config=config)
