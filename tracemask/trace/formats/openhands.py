"""OpenHands event logs: folders of event files, or lists; actions, observations, condensations."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace.fields import Fields
from tracemask.trace.files import Layout
from tracemask.trace.formats import Context, Format, Head, Line, UnitKind
from tracemask.trace.formats.openhands_legacy import LEGACY_SHAPE, Legacy, arguments
from tracemask.trace.formats.openhands_sdk import SDK_SHAPE, Sdk
from tracemask.trace.formats.openhands_view import View
from tracemask.trace.model import Trace
from tracemask.trace.parse import loads, replace_surrogates

_KINDS = ("Event", "Condensation", "CondensationRequest", "Observation")


def sniff(head: Head) -> str | None:
    """A folder `events` of JSON files, or records with `source` and `action`, `observation` or an SDK `kind`."""
    if head.layout is Layout.FOLDER:
        return "a folder of event files"
    rows = head.dicts()
    if rows and all(_is_event(row) for row in rows) and len(rows) == len(head.records):
        return "records are OpenHands events (`source` with `action`, `observation` or `kind`)"
    return None


def _is_event(row: dict[str, Any]) -> bool:
    if not isinstance(row.get("source"), str) or "id" not in row:
        return False
    kind = row.get("kind")
    return "action" in row or "observation" in row or (isinstance(kind, str) and kind.endswith(_KINDS))


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One conversation as one trace."""
    view = View(context)
    sdk, legacy = Sdk(view), Legacy(view)
    for event in _events(value, context):
        context.familiar(event.raw, SDK_SHAPE if event.has("kind") else LEGACY_SHAPE)
        name = event.take_id("id") or f"e{len(view.seen)}"
        if event.get("action") == "condensation" or event.get("kind") in ("Condensation", "CondensationEvent"):
            view.condense(event if event.has("kind") else arguments(event), name)
        else:
            (sdk if event.has("kind") else legacy).event(event, name)
    return [view.trace()]


def _events(value: Any, context: Context) -> list[Fields]:
    if context.file.layout is Layout.FOLDER:
        folder = Path(context.file.path)
        paths = sorted((path for path in folder.iterdir() if path.suffix == ".json"), key=_number)
        found: list[Fields] = []
        for path in paths:
            where = f"{context.file.rel}/{path.name}:"
            try:
                raw, _ = replace_surrogates(loads(path.read_bytes()))
            except (OSError, ValueError) as error:
                raise TraceError("TM910", where=where, what=f"invalid JSON: {error}") from None
            found.append(Fields(raw, where))
        return found
    items = cast("list[Any]", value) if isinstance(value, list) else [value]
    return [
        Fields(item.value, f"{context.where(item.number)}:") if isinstance(item, Line) else Fields(item, "")
        for item in items
    ]


def _number(path: Path) -> tuple[int, str]:
    digits = "".join(char for char in path.stem.removeprefix("event-").split("-")[0] if char.isdigit())
    return (int(digits) if digits else -1, path.name)


FORMAT = Format(
    name="openhands",
    title="OpenHands event folders and event lists: condensations rebuild the context",
    unit=UnitKind.FILE,
    fidelity=Fidelity.EXACT,
    sniff=sniff,
    read=read,
    shape={"*": None},
)
