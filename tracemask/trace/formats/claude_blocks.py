"""Content blocks of the Messages API, as Claude Code logs them, as ours. Knows no line and no chain."""

from __future__ import annotations

from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.trace.blocks import beside
from tracemask.trace.fields import Fields
from tracemask.trace.model import Block, Reasoning, ToolCall, ToolResult
from tracemask.trace.parts import content_blocks, part_block
from tracemask.trace.shape import known

_PART = known(
    "type text cache_control citations source title context id name input caller signature thinking data file_id "
    "tool_use_id is_error server_name tool_name"
)
BLOCK_SHAPE = {**_PART, "content": _PART}


def content_parts(message: Fields) -> list[Fields]:
    """The blocks of a message's content; a string is one text. Raises TraceError."""
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise message.error("content", "expected a string or a list of blocks")
    parts = cast("list[Any]", content)
    return [Fields(raw, message.at(f"content[{index}]")) for index, raw in enumerate(parts)]


def reply_blocks(message: Any, where: str) -> list[Block]:
    """The blocks of one assistant line's message. Raises TraceError TM911 naming the block."""
    content = Fields(message, where).take("content")
    if isinstance(content, str):
        return content_blocks(content, where)
    if not isinstance(content, list):
        raise TraceError("TM911", where=f"{where}.content", what="expected a list of blocks")
    return [_reply_block(raw, f"{where}.content[{index}]") for index, raw in enumerate(cast("list[Any]", content))]


def _reply_block(raw: Any, where: str) -> Block:
    part = Fields(raw, where)
    kind = part.get("type")
    if kind == "thinking":
        part.take("type")
        text, signature = part.take_str("thinking"), part.take_str("signature")
        rest = beside(Reasoning, part.rest())
        return Reasoning(text=text or None, signature=signature, redacted=not text, **rest)
    if kind == "redacted_thinking":
        return Reasoning(encrypted=part.take_str("data"), redacted=True)
    if kind == "tool_use":
        part.take("type")
        name = part.take_str("name")
        if not name:
            raise part.error("name", "missing")
        arguments = part.take_dict("input")
        return ToolCall(id=part.take_id("id"), name=name, arguments=arguments or {}, **beside(ToolCall, part.rest()))
    return part_block(raw, where)


def result_block(part: Fields) -> ToolResult:
    """A tool_result block."""
    call_id, failed = part.take_id("tool_use_id"), part.take_bool("is_error") or False
    blocks = content_blocks(part.take("content") or None, part.at("content"))
    part.take("type")
    return ToolResult(call_id=call_id, content=blocks, is_error=failed, **beside(ToolResult, part.rest()))
