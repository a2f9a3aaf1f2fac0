"""The blocks of a message: text, reasoning, calls, results, media, kinds to come. Knows no message and no format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, Strict

AuthorName = Literal["policy", "model", "environment", "taskset", "harness", "verifier", "user"]
Flag = Annotated[bool, Strict()]


class Base(BaseModel):
    """Unknown fields are kept (pydantic extra), counted by the reader, refused under strict."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Text(Base):
    """Plain content."""

    type: Literal["text"] = "text"
    text: str
    author: AuthorName | None = None


class Reasoning(Base):
    """Thinking. `field` is the chat key it came under, where that was not `reasoning_content`."""

    type: Literal["reasoning"] = "reasoning"
    text: str | None = None
    encrypted: str | None = None
    signature: str | None = None
    redacted: Flag = False
    field: str | None = None
    author: AuthorName | None = None


class ToolCall(Base):
    """A call. `raw_arguments` is the string as sampled; `arguments` its parsed convenience."""

    type: Literal["tool_call"] = "tool_call"
    id: str | None = None
    name: str
    arguments: dict[str, Any] | None = None
    raw_arguments: str | None = None
    parse_error: str | None = None
    author: AuthorName | None = None


class Media(Base):
    """An image, sound or file that is referred to; `part` is the chat part as the source had it."""

    type: Literal["media"] = "media"
    uri: str | None = None
    sha256: str | None = None
    mime: str | None = None
    part: dict[str, Any] | None = None
    author: AuthorName | None = None


class Opaque(Base):
    """A block of a kind that this version has no word for; kept whole."""

    type: Literal["opaque"] = "opaque"
    kind: str
    data: Any = None
    author: AuthorName | None = None


class ToolResult(Base):
    """What a call gave back. `call_id` resolves to an earlier ToolCall; without ids, order resolves it."""

    type: Literal["tool_result"] = "tool_result"
    call_id: str | None = None
    name: str | None = None
    content: list[Block] = Field(default_factory=list)
    is_error: Flag = False
    author: AuthorName | None = None


Block = Annotated[Text | Reasoning | ToolCall | ToolResult | Media | Opaque, Field(discriminator="type")]


def texts(blocks: Sequence[Block]) -> Iterator[str]:
    """The texts of the blocks in order, those inside tool results included."""
    for block in blocks:
        if isinstance(block, Text):
            yield block.text
        elif isinstance(block, ToolResult):
            yield from texts(block.content)


def beside(kind: type[Base], rest: Mapping[str, Any]) -> dict[str, Any]:
    """What of `rest` can be kept on a block of that kind: the keys that are no field of it."""
    return {key: value for key, value in rest.items() if key not in kind.model_fields}
