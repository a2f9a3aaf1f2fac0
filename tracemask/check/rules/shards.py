"""Rules about files: hashes, completeness, fingerprints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tracemask.check.context import Run
from tracemask.check.finding import ERROR, Finding, Place
from tracemask.check.rule import Need, Scope, rule
from tracemask.check.view import View
from tracemask.core.vocab import Author, Origin, Part, Role


@rule("TM501", "schema", ERROR, needs=(Need.IDS,))
def schema(view: View) -> Iterator[Finding]:
    """A column holds what its type or its meaning does not allow.

    **What it does.** Ids must be whole numbers; author, role, part and origin must be codes that exist; a row must have
    as many tokens as its `n_tokens` says. Files that no version of ours can read are reported too.

    **Why it is bad.** A column that is not what its name says is read as something else by the next tool.

    **Example.** Ids saved as float32: 151,667 survives, 16,777,217 does not.

    **How to fix.** Write the types that docs/reference/shards.md names.

    **Limits.** Extra columns are not judged.
    """
    block = view.block
    for i, row in enumerate(block.rows):
        ids = row.columns["token_ids"]
        if ids.dtype.kind not in "iu":
            yield block.finding("TM501", i, f"ids are {ids.dtype}, not whole numbers", token=0, cause="ids")
        stated = row.scalars.get("n_tokens")
        if view.run.ours and stated is not None and int(stated) != len(ids):
            yield block.finding(
                "TM501", i, f"n_tokens is {stated}, the row has {len(ids)} ids", token=0, cause="n_tokens"
            )
    for name, table in (("author", Author), ("role", Role), ("part", Part), ("origin", Origin)):
        codes = block.column(name)
        if codes is not None:
            unknown = np.flatnonzero(codes >= len(table))
            yield from block.each("TM501", unknown, f"{{n}} {name} code{{s}} that do not exist", cause=name)


@rule("TM506", "mixed-fingerprints", ERROR, scope=Scope.DATASET, needs=(Need.IDS,))
def mixed_fingerprints(run: Run) -> Iterator[Finding]:
    """Shards of one dataset were made with different tokenizers or templates.

    **What it does.** Compares the tokenizer's and the template's fingerprints in the shards' metadata before anything
    is read; where the tokenizer is given, compares that one too.

    **Why it is bad.** Every id of the second shard may be valid for the first tokenizer, so no range check sees it;
    joining Arrow tables silently keeps the first table's metadata.

    **Example.** Shard 0 by Qwen3, shard 1 by DeepSeek V3: `" #incinn tiene"` when read with the wrong one.

    **How to fix.** Convert all traces with one tokenizer and one template.

    **Limits.** Other tools' files carry no fingerprint; TM205 judges their ids.
    """
    sources = getattr(run.dataset, "sources", ())
    seen: dict[str, tuple[Any, str]] = {}
    for source in sources:
        for key, noun in (("tokenizer_sha256", "tokenizer"), ("template_sha256", "template")):
            value = (source.metadata or {}).get(key)
            if not value:
                continue
            first, where = seen.setdefault(key, (value, source.where))
            if value != first:
                text = f"another {noun} than {where}: {str(value)[:12]} and {str(first)[:12]}"
                yield Finding("TM506", text, Place(path=source.where), cause=noun)


@rule("TM508", "shard-corrupt", ERROR, scope=Scope.DATASET, needs=(Need.IDS,))
def shard_corrupt(run: Run) -> Iterator[Finding]:
    """A shard is cut, changed, or missing.

    **What it does.** Opens every shard of the manifest, compares sizes and row counts, and hashes each file.

    **Why it is bad.** A cut file may still open and read short; a changed one trains on something that the manifest
    does not describe.

    **Example.** `part-00003.arrow: sha256 differs from the manifest`.

    **How to fix.** Run the same convert again: it keeps what is whole and makes the rest anew.

    **Limits.** Only folders that `tracemask convert` wrote have a manifest; other files are read and that is all.
    """
    if run.ours and hasattr(run.dataset, "paths"):
        from tracemask.store.manifest import verify

        yield from verify(run.dataset)
