"""What an OpenHands agent sees, event by event: appended to, condensed below a new root. Knows no kind of event."""

from __future__ import annotations

from typing import Any, TypeAlias

from tracemask.core.errors import TraceError
from tracemask.trace.chat import message_from_chat
from tracemask.trace.fields import Fields
from tracemask.trace.formats import Context
from tracemask.trace.model import EdgeKind, Message, Source, Text, Trace
from tracemask.trace.tree import Tree

Mark: TypeAlias = "tuple[list[tuple[str, Message]], int]"
_CHAT = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")


class View:
    """Events in order as a view; a condensation rebuilds it below a new root."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.tree = Tree()
        self.seen: list[tuple[str, Message]] = []  # (event id, message) in the order the model sees them
        self.at: str | None = None
        self.before: str | None = None
        self.edge: tuple[EdgeKind, str] = ("compaction", "condensation")
        self.group: str | None = None  # the llm response whose actions are one reply
        self.tools: list[dict[str, Any]] | None = None
        self.errors: list[str] = []
        self.seen_user = False
        self.stop: str | None = None

    def append(self, name: str, message: Message) -> None:
        """The message of one event after the last one; it links a break."""
        self.group = None
        self.tree.add(message, self.at)
        if self.before is not None:
            self.tree.link(self.edge[0], self.before, message.id, trigger=self.edge[1])
            self.before = None
        self.at = message.id
        self.seen.append((name, message))

    def mark(self) -> Mark:
        """What is seen now; `seen` only grows, or is another list."""
        return self.seen, len(self.seen)

    def go_back(self, mark: Mark) -> None:
        """What comes next follows what was seen at `mark`."""
        seen, count = mark
        if seen is self.seen and count == len(seen):
            return
        self.before, self.edge = self.at, ("rewrite", "navigated")
        self.seen, self.group = seen[:count], None
        self.at = self.seen[-1][1].id if self.seen else None

    def passed_over(self, kind: Any) -> None:
        """Notes an event that the model does not see."""
        self.context.notes[f"event {kind!r} is not part of the context"] += 1

    def last_reply(self) -> Message | None:
        """The last reply in view."""
        return next((message for _, message in reversed(self.seen) if message.role == "assistant"), None)

    def chat(self, chat: dict[str, Any], name: str, where: str) -> Message:
        """A chat message of an event; content that is only text parts is one text."""
        raw = {key: chat[key] for key in _CHAT if chat.get(key) is not None}
        message = message_from_chat(raw, 0, where=where, first_user=not self.seen_user)
        message.id = name
        content = message.blocks[0].content if message.role == "tool" and message.blocks else message.blocks  # type: ignore[union-attr]
        message.parts = message.parts and not all(isinstance(block, Text) for block in content)
        if message.role == "user":
            self.seen_user = True
        return message

    def condense(self, args: Fields, name: str) -> None:
        """The forgotten events leave the view, the summary (another call's words) enters at its offset: a new root."""
        gone = {str(item) for item in args.take_list("forgotten_event_ids") or []}
        start, end = args.take_int("forgotten_events_start_id"), args.take_int("forgotten_events_end_id")
        if start is not None and end is not None:
            numbers = {event: int(event) for event, _ in self.seen if event.isdecimal()}
            gone |= {event for event, number in numbers.items() if start <= number <= end}
        summary, offset = args.take_str("summary"), args.take_int("summary_offset")
        new = [
            (event, message.model_copy(update={"copied": True, "sampled": None}, deep=True))
            for event, message in self.seen
            if event not in gone
        ]
        if summary is not None:
            words = Message(id=name, role="user", author="model", blocks=[Text(text=summary)])
            new.insert(len(new) if offset is None else min(max(offset, 0), len(new)), (name, words))
        prefix = 0  # what is unchanged from the root stays the same nodes
        while prefix < len(new) and prefix < len(self.seen) and new[prefix][0] == self.seen[prefix][0]:
            prefix += 1
        self.before, self.edge = self.at, ("compaction", "condensation")
        self.seen = self.seen[:prefix]
        self.at = self.seen[-1][1].id if self.seen else None
        for event, message in new[prefix:]:
            self.append(event, message)

    def trace(self) -> Trace:
        """What was seen and said. Raises TraceError TM904 where nothing was."""
        if not self.tree.messages:
            raise TraceError("TM904", where="", what="no event is part of a context")
        name = self.context.file.rel.removesuffix("/events").removesuffix(".json").removesuffix(".jsonl")
        last = self.last_reply()
        return self.tree.trace(
            id=name,
            tools=self.tools,
            stop=self.stop,
            truncated=True if last is not None and last.cut_short else None,
            errors=self.errors,
            source=Source(format="openhands"),
        )
