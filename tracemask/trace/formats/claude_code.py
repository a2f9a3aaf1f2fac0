"""Claude Code session files: linked lines, replies over several lines, side chains, compact boundaries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Format, Head, Line, UnitKind, keep
from tracemask.trace.formats.claude_blocks import content_parts, reply_blocks, result_block
from tracemask.trace.formats.claude_lines import LINE_SHAPE, Entry, Lines
from tracemask.trace.model import AuthorName, Block, Message, Source, Text, ToolCall, Trace
from tracemask.trace.parts import part_block
from tracemask.trace.tree import Tree

_HARNESS = ("<system-reminder>", "<local-command", "<command-", "Caveat:", "[Request interrupted")


def sniff(head: Head) -> str | None:
    """Lines that carry `parentUuid` and `uuid`, or that open such a file."""
    for row in head.dicts():
        if "parentUuid" in row and "uuid" in row and isinstance(row.get("type"), str):
            return "lines are linked by `uuid` and `parentUuid`"
    return None


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One session file as one trace: the main chain, its side chains and rewinds as branches."""
    lines = cast("list[Any]", value) if isinstance(value, list) else []
    if not lines or not all(isinstance(line, Line) for line in lines):
        raise TraceError("TM911", where="", what="expected one entry a line")
    return [_Session(Lines(cast("list[Line]", lines), context), context).trace()]


class _Session:
    """Places the messages of a session's lines in a tree."""

    def __init__(self, lines: Lines, context: Context) -> None:
        self.context = context
        self.lines = lines
        self.tree = Tree()
        self.last: dict[str, str] = {}  # uuid → id of the message after which its children continue
        self.placed: set[str] = set()
        self.made: dict[str, list[Message]] = {}  # uuid → the messages of its line
        self.tasks: dict[str, str] = {}  # prompt of a sub-agent → id of the reply that started it
        self.model: str | None = None
        self.errors: list[str] = []
        self.seen_user: set[str | None] = set()

    def trace(self) -> Trace:
        """Places every line; the trace of what was said."""
        for entry in self.lines.entries.values():
            self.place(entry)
        if not self.tree.messages:
            raise TraceError("TM904", where=self.context.where(), what="the session has no messages")
        replies = [message for message in self.tree.messages if message.from_policy]
        name = self.lines.session or self.context.file.rel
        sidechain_only = all(entry.side for entry in self.lines.entries.values())
        self.context.notes["the system prompt and the tool schemas are not in this log"] += 1
        return self.tree.trace(
            id=f"{name}/{self.lines.agent}" if sidechain_only and self.lines.agent else name,
            truncated=True if replies and replies[-1].cut_short else None,
            errors=self.errors,
            source=Source(format="claude-code", version=self.lines.version),
            extra={"model": self.model},
        )

    # ---- places

    def place(self, entry: Entry) -> None:
        """Adds the messages of an entry and of all that it follows. Raises TraceError TM110 on a ring of parents."""
        waiting, names = [entry], {entry.uuid}
        while True:
            parent = self.lines.entries.get(waiting[-1].parent or "")
            if parent is None or parent.uuid in self.placed:
                break
            if parent.uuid in names:
                what = f"{parent.uuid!r} is its own ancestor"
                raise waiting[-1].row.error("parentUuid", what, code="TM110", fix="repair the file")
            waiting.append(parent)
            names.add(parent.uuid)
        for one in reversed(waiting):
            self.place_one(one)

    def place_one(self, entry: Entry) -> None:
        """Adds the entry's messages below what it follows; an entry without a message only hands its place on."""
        if entry.uuid in self.placed:
            return
        self.placed.add(entry.uuid)
        group = self.lines.answered(entry)
        if entry.type == "assistant":
            self.reply(entry)
        elif group is not None:
            self.answer(group)
        elif entry.type == "user":
            self.given(entry)
        else:
            self.hand_on(entry)

    def after(self, entry: Entry) -> str | None:
        """The id of the message that the entry follows.

        Raises TraceError TM110 where its parent is not in the file.
        """
        if entry.parent is None:
            return None
        if entry.parent not in self.lines.entries:
            if not self.tree.messages:
                self.context.notes["the session continues one that is not in this file"] += 1
                return None
            raise entry.row.error(
                "parentUuid", f"{entry.parent!r} is not in this file", code="TM110", fix="pass the whole session"
            )
        parent = self.lines.entries[entry.parent]
        if parent.uuid not in self.placed:
            self.place(parent)
        return self.last.get(entry.parent)

    def hand_on(self, entry: Entry) -> None:
        before = self.after(entry)
        if before is not None:
            self.last[entry.uuid] = before
        subtype, kept = entry.row.get("subtype"), entry.row.get("compactMetadata")
        if subtype in ("compact_boundary", "microcompact_boundary"):
            self.context.notes[f"{subtype}"] += 1
            names = cast("dict[str, Any]", kept) if isinstance(kept, dict) else {}
            if "preservedSegment" in names and "preservedMessages" not in names:  # their ends, not their names
                self.context.notes["a compaction kept messages that the context after it does not repeat"] += 1
        else:
            self.lines.outside(entry)

    def add(self, message: Message, entry: Entry, after: str | None) -> str:
        """Adds one message; the first one after a boundary gets the edge that says why."""
        name = self.tree.add(message, after)
        self.made.setdefault(entry.uuid, []).append(message)
        edge = self.lines.boundary(entry) if after is None else None
        if edge is not None:
            meta = edge.row.get("compactMetadata")
            trigger = cast("dict[str, Any]", meta).get("trigger") if isinstance(meta, dict) else None
            self.tree.link(
                "compaction",
                self.last.get(edge.logical or ""),
                name,
                trigger=trigger if isinstance(trigger, str) else None,
            )
        elif after is None and entry.side:
            self.tree.link("subagent", self.tasks.get(message.text().strip()), name)
        return name

    # ---- messages

    def reply(self, entry: Entry) -> None:
        """All lines of one message.id are one reply, placed where the first of them stands."""
        group = self.lines.groups[entry.group]
        self.placed.update(line.uuid for line in group)
        first = group[0]
        after = self.after(first)
        head = Fields(first.row.get("message") or {}, first.row.at("message"))
        model, blocks = head.take_str("model"), list[Block]()
        for line in group:
            blocks.extend(reply_blocks(line.row.get("message"), line.row.at("message")))
        if model == "<synthetic>" or first.row.get("isApiErrorMessage"):
            said = [block.text if isinstance(block, Text) else str(block.model_dump()) for block in blocks]
            self.errors.append("".join(said)[:500])
            for line in group:  # the harness's own words, never sent to the model
                if after is not None:
                    self.last[line.uuid] = after
            return
        if not first.side:
            self.model = self.model or model
        message = Message(
            id=first.uuid,
            role="assistant",
            author="policy",
            blocks=blocks,
            created=first.row.take_str("timestamp"),
            finish_reason=_stop_reason(group),
        )
        if model is not None and self.model is not None and model != self.model:
            message.author = "model"
        said = {"model": model, "usage": group[-1].message().get("usage")}
        log = {key: value for key, value in (first.row.rest() | said).items() if key != "message" and value is not None}
        keep(message, log)
        name = self.add(message, first, after)
        for block in blocks:
            if isinstance(block, ToolCall) and isinstance((block.arguments or {}).get("prompt"), str):
                self.tasks[(block.arguments or {})["prompt"].strip()] = name
        for line in group:
            self.last[line.uuid] = name

    def answer(self, group: str) -> None:
        """The results of one reply in the order of its calls, as the model saw them, whatever the order of lines."""
        first = self.lines.groups[group][0]
        if first.uuid not in self.placed:
            self.place(first)
        lines = self.lines.answers(group)
        at = self.last.get(first.uuid)
        seen: set[str] = set()
        once = [line for line in lines if not seen.intersection(line.call_ids) and not seen.update(line.call_ids)]
        self.placed.update(line.uuid for line in once)
        for line in once:
            at = self.result_messages(line, at)
        for line in once:  # reminders come after all results
            at = self.rest_message(line, at)
        for line in once:
            if at is not None:
                self.last[line.uuid] = at
        for line in lines:
            if line not in once:  # answered again after a rewind: a branch of its own
                self.given(line)

    def given(self, entry: Entry) -> None:
        self.placed.add(entry.uuid)
        at = self.rest_message(entry, self.result_messages(entry, self.after(entry)))
        edge = self.lines.boundary(entry) if entry.row.get("isCompactSummary") else None
        for one in self.lines.kept(edge, entry) if edge is not None else []:
            at = self.again(one, at)
        if at is not None:
            self.last[entry.uuid] = at

    def again(self, entry: Entry, at: str | None) -> str | None:
        """What a compaction kept of an entry, once more after its summary; none of it was sampled there."""
        self.place(entry)
        for message in list(self.made.get(entry.uuid, [])):
            at = self.tree.add(message.model_copy(update={"copied": True, "sampled": None}, deep=True), at)
        return at

    def result_messages(self, entry: Entry, at: str | None) -> str | None:
        """One tool message for each result of a user line."""
        results = [part for part in content_parts(entry.message()) if part.get("type") == "tool_result"]
        for number, part in enumerate(results):
            name = entry.uuid if number == 0 else f"{entry.uuid}.{number}"
            message = Message(
                id=name,
                role="tool",
                author="environment",
                blocks=[result_block(part)],
                created=entry.row.get("timestamp"),
            )
            at = self.add(message, entry, at)
        return at

    def rest_message(self, entry: Entry, at: str | None) -> str | None:
        """One user message with what a user line holds beside results."""
        parts = content_parts(entry.message())
        rest = [part_block(part.raw, part.where) for part in parts if part.get("type") != "tool_result"]
        if not rest:
            return at
        text = "".join(block.text for block in rest if isinstance(block, Text))
        after_results = len(rest) < len(parts)
        user = Message(
            id=f"{entry.uuid}.text" if after_results else entry.uuid,
            role="user",
            blocks=rest,
            author=self.author(entry, text, after_results=after_results),
            created=entry.row.get("timestamp"),
        )
        keep(user, {key: value for key, value in entry.row.rest().items() if key not in ("message", "timestamp")})
        return self.add(user, entry, at)

    def author(self, entry: Entry, text: str, *, after_results: bool) -> AuthorName:
        """Summaries are another call's words, reminders and echoes the harness's, the first real one the task."""
        if entry.row.get("isCompactSummary"):
            return "model"
        if entry.row.get("isMeta") or after_results or text.lstrip().startswith(_HARNESS):
            return "harness"
        origin = entry.row.get("origin")
        kind = cast("dict[str, Any]", origin).get("kind") if isinstance(origin, dict) else None
        chain = "side" if entry.side else None
        kind = entry.row.get("turnOrigin") if kind is None else kind
        if kind not in (None, "human") and chain in self.seen_user:
            return "harness"  # a task's notification, a coordinator: nobody typed it
        if chain not in self.seen_user or (entry.side and entry.parent is None):
            self.seen_user.add(chain)
            return "taskset"
        return "user"


def _stop_reason(group: list[Entry]) -> str | None:
    for line in reversed(group):
        reason = Fields(line.row.get("message") or {}, line.row.at("message")).take_str("stop_reason")
        if reason is not None:
            return reason
    return None


FORMAT = Format(
    name="claude-code",
    title="Claude Code session JSONL: side chains, compact boundaries, replies over several lines (no system prompt)",
    unit=UnitKind.FILE,
    fidelity=Fidelity.MESSAGES,
    sniff=sniff,
    read=read,
    shape=LINE_SHAPE,
)
