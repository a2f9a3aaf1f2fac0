"""Rules about files: hashes, completeness, fingerprints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tracemask.check.context import Run
from tracemask.check.finding import ERROR, Finding, Place
from tracemask.check.rule import Need, Scope, rule


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
