"""The canonical trace: one agent run as a tree of messages, some of them sampled. Knows no format, template or weight."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

RoleName = Literal["system", "developer", "user", "assistant", "tool"]
AuthorName = Literal["policy", "model", "environment", "taskset", "harness", "verifier", "user"]


class Base(BaseModel):
    """Unknown fields are kept (pydantic extra), counted by the reader, refused under strict."""

    model_config = ConfigDict(extra="allow")


class Text(Base):
    type: Literal["text"] = "text"
    text: str
    author: AuthorName | None = None


class Reasoning(Base):
    type: Literal["reasoning"] = "reasoning"
    text: str | None = None
    encrypted: str | None = None
    signature: str | None = None
    redacted: bool = False
    author: AuthorName | None = None


class ToolCall(Base):
    type: Literal["tool_call"] = "tool_call"
    id: str | None = None
    name: str
    arguments: dict[str, Any] | None = None
    raw_arguments: str | None = None
    parse_error: str | None = None
    author: AuthorName | None = None


class Media(Base):
    type: Literal["media"] = "media"
    uri: str | None = None
    sha256: str | None = None
    mime: str | None = None
    author: AuthorName | None = None


class Opaque(Base):
    type: Literal["opaque"] = "opaque"
    kind: str
    data: Any = None
    author: AuthorName | None = None


class ToolResult(Base):
    type: Literal["tool_result"] = "tool_result"
    call_id: str | None = None
    name: str | None = None
    content: list[Block] = Field(default_factory=list)
    is_error: bool = False
    author: AuthorName | None = None


Block = Annotated[Text | Reasoning | ToolCall | ToolResult | Media | Opaque, Field(discriminator="type")]


class Span(Base):
    """Half-open range of sampled ids that another author wrote."""

    start: int
    end: int
    author: AuthorName


class VersionSpan(Base):
    """Half-open range of sampled ids and the policy version that sampled them."""

    start: int
    end: int
    version: int | str


class Sampled(Base):
    """What the engine returned for one call. Index t of every array speaks of sampled token t."""

    token_ids: list[int]
    logprobs: list[float | None] | None = None
    prompt_ids: list[int] | None = None
    finish_reason: str | None = None
    model: str | None = None
    policy_version: int | str | list[VersionSpan] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    usage: dict[str, Any] | None = None
    reward: float | None = None
    advantage: float | None = None
    spans: list[Span] = Field(default_factory=list)
    columns: dict[str, list[float]] = Field(default_factory=dict)


class Message(Base):
    """One node of the tree. `parent` is the id of the message before it (default: the one above in the list)."""

    id: str
    parent: str | None = None
    role: RoleName
    author: AuthorName
    blocks: list[Block] = Field(default_factory=list)
    sampled: Sampled | None = None
    copied: bool = False
    name: str | None = None
    created: str | float | None = None
    extra: dict[str, Any] = Field(default_factory=dict)


class Edge(Base):
    """Why the context breaks between two messages."""

    kind: Literal["compaction", "subagent", "fork", "rewrite", "continuation"]
    at: str | None = None
    to: str | None = None
    trigger: str | None = None
    ref: str | None = None


class Reward(Base):
    score: float
    weight: float = 1.0
    source: str | None = None


class Source(Base):
    """Where the trace was read; `path` is relative to the input root so that bytes do not depend on the machine."""

    format: str
    version: str | None = None
    path: str | None = None
    line: int | None = None
    sha256: str | None = None
    importer: str | None = None


class Trace(Base):
    """One agent run."""

    schema_version: str = "1.0"
    id: str
    task_id: str | None = None
    group_id: str | None = None
    attempt: int | None = None
    messages: list[Message]
    tools: list[dict[str, Any]] | None = None
    edges: list[Edge] = Field(default_factory=list)
    rewards: dict[str, Reward] = Field(default_factory=dict)
    reward: float | None = None
    advantage: float | None = None
    stop: str | None = None
    truncated: bool | None = None
    errors: list[str] = Field(default_factory=list)
    trainable: bool = True
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    source: Source | None = None

    def branches(self) -> list[list[Message]]:
        """Every root-to-leaf path, in order of the leaves in the list."""
        by_id = {message.id: message for message in self.messages}
        parents: dict[str, str | None] = {}
        before: str | None = None
        for message in self.messages:
            parents[message.id] = message.parent if "parent" in message.model_fields_set else before
            before = message.id
        inner = set(parents.values())
        paths = []
        for message in self.messages:
            if message.id in inner:
                continue
            path, at = [], message.id
            while at is not None:
                path.append(by_id[at])
                at = parents[at]
            paths.append(path[::-1])
        return paths
