"""Codex rollout files: response items in order, contexts replaced by `compacted`, turns rolled back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context, Format, Head, Line, UnitKind
from tracemask.trace.model import AuthorName, Block, Message, Opaque, Source, Text, Trace
from tracemask.trace.responses import CALLS, OUTPUTS, call_block, content_blocks, output_block, reasoning_block
from tracemask.trace.tree import Tree

_TYPES = {"session_meta", "response_item", "turn_context", "compacted", "event_msg"}
_ITEM = frozenset({"type", "id", "status", "phase", "metadata", "namespace", "success", "execution", "end_turn"})
_HARNESS = (
    "<environment_context>",
    "<user_instructions>",
    "# AGENTS.md instructions",
    "<permissions instructions>",
    "<turn_aborted>",
    "<INSTRUCTIONS>",
    "<collaboration_mode>",
    "<skills_instructions>",
)


def sniff(head: Head) -> str | None:
    """Lines of `type` and `payload` whose types are Codex's."""
    rows = head.dicts()
    known = [row for row in rows if row.get("type") in _TYPES and isinstance(row.get("payload"), dict)]
    if known and len(known) == len(rows) == len(head.records):
        return f"lines are Codex rollout items ({known[0]['type']}, …)"
    return None


def read(value: Any, context: Context) -> Iterable[Trace]:
    """One session file as one trace."""
    if not isinstance(value, list):
        raise TraceError("TM911", where="", what="expected one rollout item a line")
    session = _Session(context)
    for line in cast("list[Any]", value):
        if not isinstance(line, Line):
            raise TraceError("TM911", where="", what="expected one rollout item a line")
        session.line(line)
    return [session.trace()]


class _Session:
    def __init__(self, context: Context) -> None:
        self.context = context
        self.tree = Tree()
        self.at: str | None = None
        self.before: str | None = None  # the last message before a compaction that is not linked yet
        self.edge = ("compaction", "")
        self.open: Message | None = None  # the reply that items still join
        self.meta: dict[str, Any] = {}
        self.models: list[str] = []
        self.history_start: int | None = None
        self.copied = False
        self.task = ""
        self.stop: str | None = None
        self.errors: list[str] = []
        self.others: dict[str, int] = {}

    # ---- lines

    def line(self, line: Line) -> None:
        """One rollout line."""
        where = f"{self.context.where(line.number)}:"
        row = Fields(line.value, where)
        kind = row.take_str("type")
        payload = Fields(row.take("payload"), row.at("payload"))
        if self.history_start is not None:
            ordinal = row.take_int("ordinal")
            self.copied = ordinal is not None and ordinal < self.history_start
        if kind == "response_item":
            self.item(payload, line.number, row.take_str("timestamp"))
        elif kind == "compacted":
            self.compacted(payload, line.number)
        elif kind == "session_meta":
            self.session_meta(payload)
        elif kind == "turn_context":
            model = payload.take_str("model")
            if model is not None:
                self.models.append(model)
        elif kind == "event_msg":
            self.event(payload)
        else:
            self.context.notes[f"line type {kind!r} is not part of the context"] += 1

    def session_meta(self, payload: Fields) -> None:
        """The first one names the session; later ones are of the parents whose history was copied in."""
        if self.meta:
            return
        self.meta = dict(payload.raw)
        start = payload.take("subagent_history_start_ordinal")
        self.history_start = start if isinstance(start, int) else None
        base = payload.take("base_instructions")
        text = cast("dict[str, Any]", base).get("text") if isinstance(base, dict) else payload.take("instructions")
        if isinstance(text, str) and text:
            self.append(Message(id="instructions", role="system", author="harness", blocks=[Text(text=text)]))

    def event(self, payload: Fields) -> None:
        """Events that end a call, abort a turn or roll turns back; the rest repeats what the items say."""
        kind = payload.take_str("type")
        if kind == "token_count" and payload.get("info") is not None:
            self.open = None
        elif kind == "turn_aborted":
            self.stop = f"aborted: {payload.get('reason') or 'unknown'}"
            if self.open is not None:
                self.open.finish_reason = "abort"
        elif kind == "error":
            self.errors.append(str(payload.get("message")))
        elif kind == "thread_rolled_back":
            self.roll_back(payload.take_int("num_turns") or 0)
        elif kind in ("task_started", "task_complete"):
            self.open = None
            self.stop = "task_complete" if kind == "task_complete" else None

    # ---- items

    def item(self, item: Fields, number: int, created: str | None = None) -> None:
        """One response item: joins the open reply, or is a message of its own."""
        kind = item.get("type")
        self.one_item(item, kind, number, created)
        if isinstance(kind, str) and kind in ("message", "reasoning", *CALLS, *OUTPUTS):
            self.context.unused(item, f"{kind}", _ITEM)

    def one_item(self, item: Fields, kind: Any, number: int, created: str | None) -> None:
        """Places the item in the context."""
        if kind == "message":
            self.message(item, number, created)
        elif kind == "reasoning":
            self.reply(number, created).blocks.append(reasoning_block(item))
        elif kind in CALLS:
            self.reply(number, created).blocks.append(call_block(item))
        elif kind in OUTPUTS:
            self.append(
                Message(
                    id=f"l{number}",
                    role="tool",
                    author="environment",
                    blocks=[output_block(item)],
                    created=created,
                    copied=self.copied,
                )
            )
        elif kind in ("ghost_snapshot", "other"):
            self.context.notes[f"item {kind!r} is not part of the context"] += 1
        elif isinstance(kind, str):  # compaction items and kinds to come: kept whole
            self.append(
                Message(
                    id=f"l{number}",
                    role="user",
                    author="model",
                    copied=self.copied,
                    blocks=[Opaque(kind=kind, data=dict(item.raw))],
                )
            )
        else:
            raise item.error("type", "missing")

    def message(self, item: Fields, number: int, created: str | None) -> None:
        role = item.take_str("role")
        content = item.take("content")
        if content is None:
            raise item.error("content", "missing")
        blocks = content_blocks(content, item.at("content"))
        if role == "assistant":
            self.reply(number, created).blocks.extend(blocks)
        elif role in ("user", "developer", "system"):
            author = "harness" if role != "user" else self.user_author(blocks)
            self.append(
                Message(id=f"l{number}", role=role, author=author, blocks=blocks, created=created, copied=self.copied)
            )
        else:
            raise item.error("role", f"unknown role {role!r}", fix="one of user, assistant, developer, system")

    def user_author(self, blocks: list[Block]) -> AuthorName:
        """Codex itself speaks in the user slot (environment, instructions); the first other message is the task."""
        text = next((block.text for block in blocks if isinstance(block, Text)), "")
        if text.lstrip().startswith(_HARNESS):
            return "harness"
        self.task = self.task or text
        return "taskset" if text == self.task else "user"

    def reply(self, number: int, created: str | None) -> Message:
        """The open reply, or a new one: items of one call are one message."""
        if self.open is None:
            message = Message(id=f"l{number}", role="assistant", author="policy", created=created, copied=self.copied)
            if self.models and self.models[-1] != self.models[0]:
                message.author = "model"
            self.append(message)
            self.open = message
        return self.open

    def append(self, message: Message) -> None:
        self.open = None
        self.tree.add(message, self.at)
        if self.before is not None:
            self.tree.link(
                "compaction" if self.edge[0] == "compaction" else "rewrite",
                self.before,
                message.id,
                trigger=self.edge[1] or None,
            )
            self.before = None
        self.at = message.id

    # ---- breaks

    def compacted(self, payload: Fields, number: int) -> None:
        """The context from here on is replacement_history, item by item; none of it was sampled here."""
        summary = payload.take_str("message") or ""
        history = payload.take_list("replacement_history")
        self.before, self.edge = self.before or self.at, ("compaction", "compacted")
        if history is None:
            history = self.rebuilt(summary)
            self.context.notes["compaction without replacement_history: rebuilt from user messages and summary"] += 1
        first, copied = len(self.tree.messages), self.copied
        self.at, self.open, self.copied = None, None, True
        for index, raw in enumerate(history):
            item = Fields(raw, payload.at(f"replacement_history[{index}]"))
            self.item(item, number)
        for message in self.tree.messages[first:]:
            if summary and message.role != "assistant" and summary in message.text():
                message.author = "model"
        if summary and not any(summary in message.text() for message in self.tree.messages[first:]):
            self.context.notes["a compaction summary that its replacement_history does not hold"] += 1
        self.open, self.copied = None, copied

    def rebuilt(self, summary: str) -> list[dict[str, Any]]:
        """What older files leave out: instructions and user messages so far, then the summary as a user message."""
        items: list[dict[str, Any]] = []
        for message in self.path():
            if message.role in ("system", "developer", "user"):
                content = [{"type": "input_text", "text": message.text()}]
                items.append({"type": "message", "role": message.role, "content": content})
        return [*items, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": summary}]}]

    def path(self) -> list[Message]:
        by_id = {message.id: message for message in self.tree.messages}
        path: list[Message] = []
        at = self.before
        while at is not None:
            path.append(by_id[at])
            at = by_id[at].parent
        return path[::-1]

    def roll_back(self, turns: int) -> None:
        """The last `turns` user turns are taken back: what follows branches off before them."""
        left = self.at
        by_id = {message.id: message for message in self.tree.messages}
        at = self.at
        while at is not None and turns > 0:
            message = by_id[at]
            turns -= message.role == "user" and message.author in ("user", "taskset")
            at = message.parent
        self.before, self.edge, self.at, self.open = left, ("rewrite", "rolled back"), at, None

    def trace(self) -> Trace:
        if not self.tree.messages:
            raise TraceError("TM904", where=self.context.where(), what="the session has no response items")
        extra: dict[str, Any] = {
            key: self.meta[key] for key in self.meta if key not in ("instructions", "base_instructions")
        }
        last = next((m for m in reversed(self.tree.messages) if m.role == "assistant"), None)
        trace_id = self.meta.get("id")
        return self.tree.trace(
            id=trace_id if isinstance(trace_id, str) else self.context.file.rel,
            stop=self.stop,
            truncated=True if last is not None and last.cut_short else None,
            errors=self.errors,
            source=Source(format="codex", version=self.meta.get("cli_version")),
            extra={"session": extra, "model": self.models[0] if self.models else None},
        )


FORMAT = Format(
    name="codex",
    title="Codex rollout JSONL: compaction by replacement_history, encrypted reasoning, free-form tools, roll-backs",
    unit=UnitKind.FILE,
    fidelity=Fidelity.MESSAGES,
    sniff=sniff,
    read=read,
    known=frozenset({"session", "model"}),
)
