"""tracemask's own JSON Lines (jsonl.py), as the recorder writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace.formats import Context, Format, Head, UnitKind
from tracemask.trace.jsonl import from_json
from tracemask.trace.model import Trace


def sniff(head: Head) -> str | None:
    """`schema_version` that is a plain number, and messages with blocks (or the older content) and authors."""
    for row in head.dicts():
        version = row.get("schema_version")
        if isinstance(version, str) and version[:1].isdigit() and isinstance(row.get("messages"), list):
            return f"records are traces of schema version {version}"
    return None


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One record as one trace."""
    if not isinstance(value, dict):
        raise TraceError("TM911", where="", what="expected an object")
    if "id" not in value:
        value = {**value, "id": context.default_id()}
    return [from_json(value)]


FORMAT = Format(
    name="tracemask",
    title="tracemask's own JSONL, written by Recorder and by the importers",
    unit=UnitKind.RECORD,
    fidelity=Fidelity.EXACT,
    sniff=sniff,
    read=read,
)
