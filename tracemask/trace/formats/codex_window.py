"""What the model of a Codex session sees, message by message: appended to, replaced, rolled back. Knows no line."""

from __future__ import annotations

from tracemask.trace.model import EdgeKind, Message
from tracemask.trace.tree import Tree


class Window:
    """The path of messages that the next call sees, in the tree of all that any call saw."""

    def __init__(self) -> None:
        self.tree = Tree()
        self.at: str | None = None
        self.before: str | None = None  # the last message before a break that is not linked yet
        self.edge: tuple[EdgeKind, str] = ("compaction", "")
        self.open: Message | None = None  # the reply that items still join
        self.copied = False  # what comes was said elsewhere: history that was copied in

    def append(self, message: Message) -> None:
        """A message after the last one; it closes the open reply, and links a break."""
        self.open = None
        self.tree.add(message, self.at)
        if self.before is not None:
            self.tree.link(self.edge[0], self.before, message.id, trigger=self.edge[1])
            self.before = None
        self.at = message.id

    def reply(self, message: Message) -> Message:
        """The open reply, or `message` as a new one: items of one call are one message."""
        if self.open is None:
            self.append(message)
            self.open = message
        return self.open

    def replace(self) -> list[Message]:
        """All that was seen is gone: what comes next starts a new root. What had been seen."""
        self.before, self.edge = self.before or self.at, ("compaction", "compacted")
        self.at, self.open = None, None
        return self.path(self.before)

    def path(self, at: str | None) -> list[Message]:
        """The messages from the root to `at`."""
        by_id = {message.id: message for message in self.tree.messages}
        path: list[Message] = []
        while at is not None:
            path.append(by_id[at])
            at = by_id[at].parent
        return path[::-1]

    def roll_back(self, turns: int) -> None:
        """The last `turns` user turns are taken back: what follows branches off before them."""
        left, path = self.at, self.path(self.at)
        while path and turns > 0 and path[-1].role != "system":
            message = path.pop()
            turns -= message.role == "user" and message.author in ("user", "taskset")
        self.before, self.edge = left, ("rewrite", "rolled back")
        self.at, self.open = path[-1].id if path else None, None
