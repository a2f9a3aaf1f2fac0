"""The lines of one Claude Code session by uuid, by reply and by the call they answer. Places no message."""

from __future__ import annotations

from typing import Any, cast

from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Line
from tracemask.trace.formats.claude_blocks import BLOCK_SHAPE
from tracemask.trace.shape import known

LINE_SHAPE = known(
    # what links and places a line
    "type uuid parentUuid logicalParentUuid isSidechain sessionId agentId isMeta isCompactSummary isApiErrorMessage "
    "isVisibleInTranscriptOnly subtype compactMetadata microcompactMetadata origin "
    "turnOrigin turnPosition "
    # what is said of it
    "version cwd gitBranch userType timestamp requestId toolUseResult slug entrypoint promptId promptSource teamName "
    "sourceToolAssistantUUID sourceToolUseID permissionMode thinkingMetadata todos imagePasteIds error apiError "
    "forkedFrom isAutoCompact attributionSkill mcpMeta toolDenialKind permissionDecision planContent session_id "
    "scheduledTaskId scheduledFireId queuePriority queueSkipAttachments "
    # what only lines outside the context have
    "level content toolUseID parentToolUseID data durationMs hookCount hookInfos hookErrors preventedContinuation "
    "stopReason hasOutput messageId snapshot isSnapshotUpdate summary leafUuid operation customTitle aiTitle agentName "
    "agentColor agentSetting lastPrompt mode attachment tag prNumber prUrl prRepository retryInMs retryAttempt "
    "maxRetries cause hookAdditionalContext messageCount url",
    message=known(
        "id type role model usage stop_reason stop_sequence stop_details container context_management diagnostics",
        content=BLOCK_SHAPE,
    ),
)


class Entry:
    """One line that is part of a chain: its uuid, the uuid it follows, and the message in it, if it has one."""

    __slots__ = ("call_ids", "content", "group", "line", "logical", "parent", "row", "side", "type", "uuid")

    def __init__(self, line: Line, where: str) -> None:
        self.row = Fields(line.value, where)
        self.line = line.number
        self.type = self.row.take_str("type") or ""
        self.uuid = self.row.take_str("uuid") or ""
        self.parent = self.row.take_str("parentUuid")
        self.logical = self.row.take_str("logicalParentUuid")
        self.side = self.row.take_bool("isSidechain") or False
        message = self.row.get("message")
        content: Any = cast("dict[str, Any]", message).get("content") if isinstance(message, dict) else None
        self.content: list[Any] = cast("list[Any]", content) if isinstance(content, list) else []
        identity = cast("dict[str, Any]", message).get("id") if isinstance(message, dict) else None
        self.group = identity if self.type == "assistant" and isinstance(identity, str) else self.uuid
        self.call_ids = [
            part["tool_use_id"]
            for part in self.content
            if isinstance(part, dict) and isinstance(cast("dict[str, Any]", part).get("tool_use_id"), str)
        ]

    def calls(self) -> list[str]:
        """The ids of the calls that a reply's line makes."""
        parts = (cast("dict[str, Any]", part) for part in self.content if isinstance(part, dict))
        return [part["id"] for part in parts if part.get("type") == "tool_use" and isinstance(part.get("id"), str)]

    def message(self) -> Fields:
        """The message of a user or assistant line. Raises TraceError TM911 where it has none."""
        return Fields(self.row.get("message"), self.row.at("message"))


class Lines:
    """The entries of a session in file order, and what hangs together in them."""

    def __init__(self, lines: list[Line], context: Context) -> None:
        self.context = context
        self.entries: dict[str, Entry] = {}
        self.groups: dict[str, list[Entry]] = {}  # message id → the lines of that reply
        self.results: dict[str, list[Entry]] = {}  # message id → the user lines that answer its calls
        self.call_group: dict[str, str] = {}  # call id → message id
        self.session: str | None = None
        self.agent: str | None = None
        self.version: str | None = None
        for line in lines:
            self._index(Entry(line, f"{context.where(line.number)}:"))
        for entry in self.entries.values():  # only now: a result may stand before the line of its call
            group = self.answered(entry)
            if group is not None:
                self.results.setdefault(group, []).append(entry)

    def _index(self, entry: Entry) -> None:
        self.session = self.session or entry.row.take_str("sessionId")
        self.version = self.version or entry.row.take_str("version")
        agent = entry.row.get("agentId")
        self.agent = self.agent or (agent if isinstance(agent, str) else None)
        if not entry.uuid:
            self.outside(entry)
        elif entry.uuid in self.entries:
            self.context.notes["a line repeated under the same uuid"] += 1
        else:
            self.entries[entry.uuid] = entry
            if entry.type == "assistant":
                self.groups.setdefault(entry.group, []).append(entry)
                self.call_group.update(dict.fromkeys(entry.calls(), entry.group))

    def outside(self, entry: Entry) -> None:
        """Notes a line whose text, where it has one, is not placed in the context."""
        kind = entry.type
        attached = entry.row.get("attachment")
        if kind == "attachment" and isinstance(attached, dict):
            name = cast("dict[str, Any]", attached).get("type")
            self.context.notes[f"attachment {name!r}: the words that the model saw of it are not in the log"] += 1
        elif kind not in ("system", "progress"):
            self.context.notes[f"line type {kind!r} is not part of the context"] += 1

    def answered(self, entry: Entry) -> str | None:
        """The message id of the reply whose calls a user line answers."""
        return self.call_group.get(entry.call_ids[0]) if entry.type == "user" and entry.call_ids else None

    def answers(self, group: str) -> list[Entry]:
        """The lines that answer a reply, in the order of its calls, whatever the order of lines."""
        order = [call for line in self.groups[group] for call in line.calls()]
        place = {call: index for index, call in enumerate(order)}
        return sorted(self.results[group], key=lambda line: place.get(line.call_ids[0], len(order)))

    def kept(self, boundary: Entry, summary: Entry) -> list[Entry]:
        """The lines that a compaction kept word for word behind its summary, of a reply the first.

        What the file itself links behind the summary is there already.
        """
        meta = boundary.row.get("compactMetadata")
        kept = cast("dict[str, Any]", meta).get("preservedMessages") if isinstance(meta, dict) else None
        uuids = cast("dict[str, Any]", kept).get("uuids") if isinstance(kept, dict) else None
        found: list[Entry] = []
        for uuid in cast("list[Any]", uuids) if isinstance(uuids, list) else []:
            entry = self.entries.get(uuid) if isinstance(uuid, str) else None
            if entry is None:
                self.context.notes["a message that a compaction kept is not in this file"] += 1
            elif not self.below(entry, summary):
                first = self.groups[entry.group][0] if entry.type == "assistant" else entry
                found += [first] if first not in found else []
        return found

    def below(self, entry: Entry, ancestor: Entry) -> bool:
        """Whether `ancestor` is on the way from `entry` to its root."""
        at: Entry | None = entry
        walked: set[str] = set()
        while at is not None and at is not ancestor and at.uuid not in walked:
            walked.add(at.uuid)
            at = self.entries.get(at.parent or "")
        return at is ancestor

    def boundary(self, entry: Entry) -> Entry | None:
        """The compact boundary that the entry follows directly, through lines without messages."""
        at = self.entries.get(entry.parent or "")
        walked: set[str] = set()
        while at is not None and at.type not in ("user", "assistant") and at.uuid not in walked:
            if at.row.get("subtype") == "compact_boundary":
                return at
            walked.add(at.uuid)
            at = self.entries.get(at.parent or "")
        return None
