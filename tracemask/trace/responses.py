"""Items of the Responses API (messages, reasoning, calls, outputs) as our blocks. Knows no log file."""

from __future__ import annotations

import json
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.trace.chat import arguments_of
from tracemask.trace.fields import Fields
from tracemask.trace.model import Block, Media, Opaque, Reasoning, Text, ToolCall, ToolResult

CALLS = (
    "function_call",
    "custom_tool_call",
    "local_shell_call",
    "web_search_call",
    "tool_search_call",
    "image_generation_call",
    "mcp_call",
    "computer_call",
)
OUTPUTS = (
    "function_call_output",
    "custom_tool_call_output",
    "local_shell_call_output",
    "tool_search_output",
    "mcp_tool_call_output",
    "computer_call_output",
)


def content_blocks(content: Any, where: str) -> list[Block]:
    """A message's content: a string, or parts of type input_text, output_text, text, refusal, input_image."""
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(text=content)]
    if not isinstance(content, list):
        raise TraceError("TM911", where=where, what="expected a string or a list of parts")
    blocks: list[Block] = []
    for index, raw in enumerate(cast("list[Any]", content)):
        part = Fields(raw, f"{where}[{index}]")
        kind = part.take_str("type")
        if kind in ("input_text", "output_text", "text", "summary_text", "reasoning_text"):
            text = part.take_str("text")
            if text is None:
                raise part.error("text", "missing")
            blocks.append(Text(text=text))
        elif kind in ("input_image", "image"):
            uri = part.take("image_url")
            blocks.append(Media(mime="image/*", uri=uri if isinstance(uri, str) and "://" in uri[:12] else None))
        elif kind is None:
            raise part.error("type", "missing")
        else:
            blocks.append(Opaque(kind=kind, data=dict(part.raw)))
    return blocks


def reasoning_block(item: Fields) -> Reasoning:
    """What can be read of a reasoning item (its own text before its summary), and its encrypted form."""
    texts: list[str] = []
    other: list[Any] = []
    for key in ("content", "summary"):
        found = content_blocks(item.take(key), item.at(key))
        texts = texts or [block.text for block in found if isinstance(block, Text)]
        other += [block.model_dump() for block in found if not isinstance(block, Text)]
    encrypted = item.take("encrypted_content")
    block = Reasoning(
        text="\n".join(texts) if texts else None,
        encrypted=encrypted if isinstance(encrypted, str) else None,
        redacted=encrypted is not None or not texts,
    )
    if other and block.model_extra is not None:
        block.model_extra["other"] = other
    return block


def call_block(item: Fields) -> ToolCall:
    """A call item; free-form tools keep their input as `raw_arguments` and say so in parse_error."""
    kind = item.take_str("type") or ""
    call_id = item.take_id("call_id") or item.take_id("id")
    if kind == "custom_tool_call":
        name, text = item.take_str("name"), item.take_str("input")
        if not name:
            raise item.error("name", "missing")
        return ToolCall(id=call_id, name=name, raw_arguments=text or "", parse_error="free-form input")
    if kind in ("local_shell_call", "web_search_call", "image_generation_call", "computer_call"):
        action = item.take("action")
        return ToolCall(
            id=call_id, name=kind.removesuffix("_call"), arguments=action if isinstance(action, dict) else {}
        )
    name = item.take_str("name") or ("tool_search" if kind == "tool_search_call" else None)
    if not name:
        raise item.error("name", "missing")
    return ToolCall(id=call_id, name=name, **arguments_of(item.take("arguments"), item.at("arguments")))


def output_block(item: Fields) -> ToolResult:
    """An output item; a structured output is kept as its JSON text."""
    call_id = item.take_id("call_id")
    output = item.take("output")
    failed = False
    if isinstance(output, dict):
        inner = cast("dict[str, Any]", output)
        failed = inner.get("success") is False
        output = inner.get("content", inner.get("body", inner))
    blocks: list[Block] = []
    if isinstance(output, str | list):
        blocks = content_blocks(output, item.at("output"))
    elif output is not None:
        blocks = [Text(text=json.dumps(output, ensure_ascii=False))]
    return ToolResult(call_id=call_id, content=blocks, is_error=failed)
