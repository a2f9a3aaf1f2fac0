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
from tracemask.trace.formats.openhands_view import Mark, View
from tracemask.trace.model import Trace
from tracemask.trace.parse import loads, replace_surrogates

_ROOT = "__root__"  # the parent of an event that begins the conversation anew
_STATE = "ConversationStateUpdateEvent"
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
    branches = _Branches(view)
    for event in _events(value, context):
        context.familiar(event.raw, SDK_SHAPE if event.has("kind") else LEGACY_SHAPE)
        name = event.take_id("id") or f"e{len(view.seen)}"
        branches.enter(event)
        if event.get("action") == "condensation" or event.get("kind") in ("Condensation", "CondensationEvent"):
            view.condense(event if event.has("kind") else arguments(event), name)
        else:
            (sdk if event.has("kind") else legacy).event(event, name)
        branches.leave(event, name)
    return [view.trace()]


class _Branches:
    """SDK events of a tree: one whose parent is not the last event goes on from what its parent saw."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.head: str | None = None
        self.marks: dict[str, Mark] = {_ROOT: view.mark()}

    def enter(self, event: Fields) -> None:
        """Before the event. Raises TraceError TM110 where its parent is not in the log."""
        parent = event.take_id("parent_id")
        if parent is None or parent == self.head or event.get("kind") == _STATE:
            return
        if parent not in self.marks:
            raise event.error("parent_id", f"parent {parent!r} is no event of this conversation", code="TM110")
        self.view.go_back(self.marks[parent])

    def leave(self, event: Fields, name: str) -> None:
        """After the event: it is the head, unless it only tells the client of a state."""
        self.marks[name] = self.view.mark()
        self.head = self.head if event.get("kind") == _STATE else name


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
