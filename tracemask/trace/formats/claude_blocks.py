"""Content blocks of the Messages API, as Claude Code logs them, as ours. Knows no line and no chain."""

from __future__ import annotations

from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.trace.fields import Fields
from tracemask.trace.model import Block, Media, Opaque, Reasoning, Text, ToolCall, ToolResult


def reply_blocks(message: Any, where: str) -> list[Block]:
    """The blocks of one assistant line's message. Raises TraceError TM911 naming the block."""
    content = Fields(message, where).take("content")
    if isinstance(content, str):
        return [Text(text=content)]
    if not isinstance(content, list):
        raise TraceError("TM911", where=f"{where}.content", what="expected a list of blocks")
    blocks: list[Block] = []
    for index, raw in enumerate(cast("list[Any]", content)):
        part = Fields(raw, f"{where}.content[{index}]")
        kind = part.take_str("type")
        if kind == "text":
            blocks.append(given_block(Fields(raw, part.where)))
        elif kind == "thinking":
            text, signature = part.take_str("thinking"), part.take_str("signature")
            blocks.append(Reasoning(text=text or None, signature=signature, redacted=not text, **part.rest()))
        elif kind == "redacted_thinking":
            blocks.append(Reasoning(encrypted=part.take_str("data"), redacted=True))
        elif kind == "tool_use":
            name = part.take_str("name")
            if not name:
                raise part.error("name", "missing")
            arguments = part.take_dict("input")
            blocks.append(ToolCall(id=part.take_id("id"), name=name, arguments=arguments or {}, **part.rest()))
        elif kind is None:
            raise part.error("type", "missing")
        else:
            blocks.append(Opaque(kind=kind, data=dict(part.raw)))
    return blocks


def result_block(part: Fields) -> ToolResult:
    """A tool_result block."""
    call_id = part.take_id("tool_use_id")
    content = part.take("content")
    failed = part.take_bool("is_error") or False
    parts: list[Any] = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    if not isinstance(parts, list):
        raise part.error("content", "expected a string or a list of blocks")
    blocks = [given_block(Fields(raw, part.at(f"content[{index}]"))) for index, raw in enumerate(parts)]
    return ToolResult(call_id=call_id, content=blocks, is_error=failed)


def given_block(part: Fields) -> Block:
    """A block of a user line: text, an image or document, or a kind to come, kept whole."""
    kind = part.get("type")
    if kind == "text":
        text = part.take_str("text")
        if text is None:
            raise part.error("text", "missing")
        return Text(text=text)
    if kind in ("image", "document"):
        source = part.get("source")
        inner: dict[str, Any] = cast("dict[str, Any]", source) if isinstance(source, dict) else {}
        mime = inner.get("media_type")
        return Media(uri=inner.get("url"), mime=mime if isinstance(mime, str) else f"{kind}/*")
    if not isinstance(kind, str):
        raise part.error("type", "missing")
    return Opaque(kind=kind, data=dict(part.raw))
