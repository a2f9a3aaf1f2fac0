"""tracemask's own JSON Lines (jsonl.py), as the recorder writes them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace.formats import Context, Format, Head, UnitKind
from tracemask.trace.jsonl import from_json
from tracemask.trace.model import Trace
from tracemask.trace.parse import DEEP, too_deep


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
    if too_deep(_payloads(value)):
        raise TraceError("TM911", where="", what=f"nested deeper than {DEEP} levels", fix="remove the record")
    if "id" not in value:
        value = {**value, "id": context.default_id()}
    return [from_json(value)]


_ARRAYS = ("token_ids", "logprobs", "prompt_ids", "columns")


def _payloads(value: dict[str, Any]) -> list[Any]:
    """What of a record may hold anything: all but the arrays of its calls, which the model checks."""
    found: list[Any] = [{key: item for key, item in value.items() if key != "messages"}]
    messages = value.get("messages")
    for raw in cast("list[Any]", messages) if isinstance(messages, list) else []:
        message: dict[str, Any] = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {"": raw}
        call = message.get("sampled")
        found.append({key: item for key, item in message.items() if key != "sampled"})
        found.append({k: v for k, v in call.items() if k not in _ARRAYS} if isinstance(call, dict) else call)
    return found


FORMAT = Format(
    name="tracemask",
    title="tracemask's own JSONL, written by Recorder and by the importers",
    unit=UnitKind.RECORD,
    fidelity=Fidelity.EXACT,
    sniff=sniff,
    read=read,
)
