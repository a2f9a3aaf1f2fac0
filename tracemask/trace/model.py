"""The canonical trace: one agent run as a tree of messages, some of them sampled.

Knows no format, template or weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, PlainValidator, SerializerFunctionWrapHandler, Strict, model_serializer

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace.arrays import complete_numbers, numbers, plain_list, token_ids
from tracemask.trace.blocks import (
    AuthorName,
    Base,
    Block,
    Flag,
    Media,
    Opaque,
    Reasoning,
    Text,
    ToolCall,
    ToolResult,
    texts,
)

SCHEMA_VERSION = "1.0"

RoleName = Literal["system", "developer", "user", "assistant", "tool"]
EdgeKind = Literal["compaction", "subagent", "fork", "rewrite", "continuation"]

CUT_SHORT = frozenset(
    ["length", "max_tokens", "abort", "aborted", "max_output_tokens", "model_length", "model_context_window_exceeded"]
)

Int = Annotated[int, Strict()]
Float = Annotated[float, Strict()]
# base64 arrays stay packed (trace/arrays.Packed: read like a list, equal to one) unless a value is missing.
TokenIds = Annotated[
    Sequence[int],
    PlainValidator(token_ids, json_schema_input_type=list[int] | str),
    PlainSerializer(plain_list, return_type=list[int]),
]
Numbers = Annotated[
    Sequence[float],
    PlainValidator(complete_numbers, json_schema_input_type=list[float] | str),
    PlainSerializer(plain_list, return_type=list[float]),
]
LogProbs = Annotated[
    Sequence[float | None],
    PlainValidator(numbers, json_schema_input_type=list[float | None] | str),
    PlainSerializer(plain_list, return_type=list[float | None]),
]


class Span(Base):
    """Half-open range of sampled ids that another author wrote."""

    start: Int
    end: Int
    author: AuthorName


class VersionSpan(Base):
    """Half-open range of sampled ids and the policy version that sampled them."""

    start: Int
    end: Int
    version: Int | str


class Sampled(Base):
    """What the engine returned for one call. Index t of every array speaks of sampled token t.

    token_ids[T], logprobs[T] (nats; None: missing, never zero), prompt_ids: the exact context.
    Arrays are lists of numbers; in JSON they may be base64 of little-endian int32 (ids) or float32 (the rest).
    """

    token_ids: TokenIds
    logprobs: LogProbs | None = None
    prompt_ids: TokenIds | None = None
    finish_reason: str | None = None
    model: str | None = None
    policy_version: Int | str | list[VersionSpan] | None = None
    temperature: Float | None = None
    top_p: Float | None = None
    top_k: Int | None = None
    usage: dict[str, Any] | None = None
    reward: Float | None = None
    advantage: Float | None = None
    spans: list[Span] = Field(default_factory=list)
    columns: dict[str, Numbers] = Field(default_factory=dict)


class Message(Base):
    """One node of the tree. `parent` is the id of the message before it (default: the one above in the list).

    An explicit `parent` of None starts a new root. `copied`: here as context, sampled elsewhere or never; not trained.
    `parts`: the chat content was a list of parts, not a string. `finish_reason`: of a reply without sampled ids.
    `extra` holds what the source had and this model has no word for.
    """

    id: str
    parent: str | None = None
    role: RoleName
    author: AuthorName
    blocks: list[Block] = Field(default_factory=list)
    sampled: Sampled | None = None
    copied: Flag = False
    name: str | None = None
    parts: Flag = False
    finish_reason: str | None = None
    created: str | Float | None = None
    extra: dict[str, Any] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _default_parent_is_silent(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """A written null would make a root of what follows the message above."""
        values: dict[str, Any] = write(self)
        if "parent" not in self.model_fields_set:
            values.pop("parent", None)
        return values

    @property
    def fidelity(self) -> Fidelity:
        """How the ids of this message are known; `messages` for one that nobody sampled."""
        if self.sampled is None:
            return Fidelity.MESSAGES
        return Fidelity.COMPLETION if self.sampled.prompt_ids is None else Fidelity.EXACT

    @property
    def from_policy(self) -> bool:
        """The policy wrote it here: the only messages that may enter the policy gradient."""
        return self.role == "assistant" and self.author == "policy" and not self.copied

    @property
    def cut_short(self) -> bool:
        """The engine stopped before the policy did (length, abort)."""
        reason = self.sampled.finish_reason if self.sampled else self.finish_reason
        return reason in CUT_SHORT

    def text(self) -> str:
        """All text blocks joined, those inside tool results included."""
        return "".join(texts(self.blocks))


class Edge(Base):
    """Why the context breaks between message `at` (the last before) and `to` (the first after)."""

    kind: EdgeKind
    at: str | None = None
    to: str | None = None
    trigger: str | None = None
    ref: str | None = None


class Reward(Base):
    """One named reward; the trace's reward is Σ score · weight."""

    score: Float
    weight: Float = 1.0
    source: str | None = None


class Source(Base):
    """Where the trace was read; `path` is relative to the input root so that bytes do not depend on the machine."""

    format: str
    version: str | None = None
    path: str | None = None
    line: Int | None = None
    sha256: str | None = None
    importer: str | None = None


class Trace(Base):
    """One agent run: a tree (or forest) of messages in list order, its rewards, and what is known of its source.

    None means that the source does not say; it is never read as zero or false.
    """

    schema_version: str = SCHEMA_VERSION
    id: str
    task_id: str | None = None
    group_id: str | None = None
    attempt: Int | None = None
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    edges: list[Edge] = Field(default_factory=list)
    rewards: dict[str, Reward] = Field(default_factory=dict)
    reward: Float | None = None
    advantage: Float | None = None
    stop: str | None = None
    truncated: Flag | None = None
    errors: list[str] = Field(default_factory=list)
    trainable: Flag = True
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    source: Source | None = None
    extra: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def from_messages(
        cls, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None = None, **scalars: Any
    ) -> Trace:
        """A trace from OpenAI-style message dicts, which may carry token_ids, logprobs and prompt_ids of each reply.

        scalars: any other field of Trace (id, task_id, group_id, reward, …). Without an id, the content names it.
        Raises TraceError TM911 naming the field, TM110 and its kind where an invariant is broken.
        """
        from tracemask.trace.chat import trace_from_chat

        return trace_from_chat(messages, tools, **scalars)

    @property
    def fidelity(self) -> Fidelity:
        """The least fidelity of the policy's own messages; `messages` where there are none."""
        return min((message.fidelity for message in self.messages if message.from_policy), default=Fidelity.MESSAGES)

    def parents(self) -> dict[str, str | None]:
        """Message id → id of its parent (None: a root), the default parent filled in."""
        found: dict[str, str | None] = {}
        before: str | None = None
        for message in self.messages:
            found[message.id] = message.parent if "parent" in message.model_fields_set else before
            before = message.id
        return found

    def branches(self) -> list[list[Message]]:
        """Every root-to-leaf path, in order of the leaves in the list. Raises TraceError TM110 on a bad tree."""
        by_id = {message.id: message for message in self.messages}
        parents = self.parents()
        inner = set(parents.values())
        paths: list[list[Message]] = []
        for message in self.messages:
            if message.id not in inner:
                paths.append(self._path(message.id, by_id, parents))
        if self.messages and not paths:
            raise TraceError("TM110", where=f"trace {self.id}", what="every message is another's parent: a cycle")
        return paths

    def _path(self, leaf: str, by_id: dict[str, Message], parents: dict[str, str | None]) -> list[Message]:
        path: list[Message] = []
        at: str | None = leaf
        while at is not None:
            if at not in by_id or len(path) > len(by_id):
                raise TraceError("TM110", where=f"trace {self.id}", what=f"message {leaf!r} has no path to a root")
            path.append(by_id[at])
            at = parents[at]
        return path[::-1]


__all__ = [
    "AuthorName",
    "Base",
    "Block",
    "Edge",
    "Media",
    "Message",
    "Opaque",
    "Reasoning",
    "Reward",
    "Sampled",
    "Source",
    "Span",
    "Text",
    "ToolCall",
    "ToolResult",
    "Trace",
    "VersionSpan",
]
