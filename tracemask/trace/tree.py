"""Builds a message tree from calls that each state their whole prompt: equal prefixes are shared, the rest forks.

Knows no format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tracemask.trace.model import Block, Edge, EdgeKind, Message, Opaque, Reasoning, Text, ToolCall, ToolResult, Trace


class Tree:
    """Messages in order of first sight, each with an explicit parent; `add` appends, `walk` finds or appends.

    A reply that a later prompt repeats is the same node where role, text, calls and result are equal; reasoning that
    the later prompt leaves out does not make it another one (clients rarely send it back), other reasoning does.
    A reply in a prompt that is no known node there is copied context; unless the policy said just that, author `model`.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.edges: list[Edge] = []
        self._children: dict[str | None, list[Message]] = {}
        self._parents: dict[str, str | None] = {}
        self._said: set[str] = set()  # what the policy is known to have replied
        self.fresh: str | None = None  # id of the first message that the last walk or call added

    def add(self, message: Message, parent: str | None) -> str:
        """Appends `message` below `parent` (None: a root); its id, made unique."""
        base, number = message.id, 2
        while message.id in self._parents:
            message.id = f"{base}.{number}"
            number += 1
        self._parents[message.id] = message.parent = parent
        self.messages.append(message)
        self._children.setdefault(parent, []).append(message)
        if message.from_policy:
            self._said.add(repr(_content(message.blocks)))
        return message.id

    def walk(self, prompt: Sequence[Message], parent: str | None = None) -> str | None:
        """The id of the last message of `prompt` below `parent`; what is not there yet is added as context."""
        at, self.fresh = parent, None
        for message in prompt:
            known = next((child for child in self._children.get(at, []) if same(child, message)), None)
            if known is not None:
                at = known.id
                continue
            if message.role == "assistant" and message.sampled is None:
                message.copied = True
                if message.author == "policy" and repr(_content(message.blocks)) not in self._said:
                    message.author = "model"
            at = self.add(message, at)
            self.fresh = self.fresh or at
        return at

    def call(self, prompt: Sequence[Message], reply: Message) -> str:
        """One model call: `reply` was sampled after `prompt`.

        An equal reply that was context until now is another node.
        """
        at = self.add(reply, self.walk(prompt))
        self.fresh = self.fresh or at
        return at

    def follows(self, name: str, ancestor: str) -> bool:
        """Whether `ancestor` is on the path from the root to `name`."""
        at: str | None = name
        while at is not None and at != ancestor:
            at = self._parents.get(at)
        return at is not None

    def absent(self, messages: Iterable[Message]) -> int:
        """How many of `messages` are `same` as no node of the tree, wherever it stands."""
        nodes: dict[str, list[Message]] = {}
        for node in self.messages:
            nodes.setdefault(repr(_content(node.blocks)), []).append(node)
        alike = ((message, nodes.get(repr(_content(message.blocks)), ())) for message in messages)
        return sum(not any(same(node, message) for node in found) for message, found in alike)

    def link(
        self, kind: EdgeKind, at: str | None, to: str | None, *, trigger: str | None = None, ref: str | None = None
    ) -> None:
        """Records why the context breaks between two messages."""
        self.edges.append(Edge(kind=kind, at=at, to=to, trigger=trigger, ref=ref))

    def trace(self, **scalars: Any) -> Trace:
        """The finished trace."""
        return Trace(messages=self.messages, edges=self.edges, **scalars)


def same(known: Message, other: Message) -> bool:
    """Whether two messages are one node: role, name and blocks; reasoning may be absent from `other`."""
    if known.role != other.role or (known.name or "") != (other.name or ""):
        return False
    if _content(known.blocks) != _content(other.blocks):
        return False
    thoughts = _thoughts(other.blocks)
    return not thoughts or thoughts == _thoughts(known.blocks)


def _content(blocks: Sequence[Block]) -> list[Any]:
    found: list[Any] = []
    for block in blocks:
        if isinstance(block, Text):
            if block.text:
                found.append(block.text)
        elif isinstance(block, ToolCall):
            found.append((block.name, _arguments(block)))
        elif isinstance(block, ToolResult):
            found.append(("result", _content(block.content)))
        elif isinstance(block, Opaque):
            found.append((block.kind, json.dumps(block.data, sort_keys=True, default=str)))
        elif not isinstance(block, Reasoning):
            found.append(block.model_dump_json())
    return found


def _arguments(call: ToolCall) -> str:
    if call.arguments is not None:
        return json.dumps(call.arguments, sort_keys=True, default=str)
    return call.raw_arguments or "{}"


def _thoughts(blocks: Sequence[Block]) -> list[str | None]:
    return [block.text or block.encrypted for block in blocks if isinstance(block, Reasoning)]
