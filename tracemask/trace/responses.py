"""Items of the Responses API (messages, reasoning, calls, outputs) as our blocks. Knows no log file."""

from __future__ import annotations

import json
from typing import Any, cast

from tracemask.trace.blocks import beside
from tracemask.trace.chat import arguments_of
from tracemask.trace.fields import Fields
from tracemask.trace.model import Block, Opaque, Reasoning, Text, ToolCall, ToolResult
from tracemask.trace.parts import content_blocks

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
_ACTIONS = ("local_shell_call", "web_search_call", "image_generation_call", "computer_call")
_HOSTED = {kind: kind.removesuffix("_call") for kind in (*_ACTIONS, "tool_search_call")}
_ITEM = ("type", "status", "id", "phase", "metadata", "internal_chat_message_metadata_passthrough")


def said_blocks(content: Any, where: str) -> list[Block]:
    """A message's content; the words of a refusal are its text."""
    blocks = content_blocks(content, where)
    for index, block in enumerate(blocks):
        refusal = block.data.get("refusal") if isinstance(block, Opaque) and block.kind == "refusal" else None
        if isinstance(refusal, str):
            blocks[index] = Text.model_validate({"text": refusal, "refusal": True})
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
    """A call item; free-form tools keep their input as `raw_arguments` and say so in parse_error.

    What a hosted call has beside its arguments (its result, its namespace) is kept on the block.
    """
    kind = item.take_str("type") or ""
    call_id = item.take_id("call_id") or item.take_id("id")
    item.take("id")
    values: dict[str, Any] = {"id": call_id, "name": item.take_str("name") or _HOSTED.get(kind)}
    if not values["name"]:
        raise item.error("name", "missing")
    if kind == "custom_tool_call":
        values |= {"raw_arguments": item.take_str("input") or "", "parse_error": "free-form input"}
    elif kind in _ACTIONS:
        action = item.take("action")
        values["arguments"] = action if isinstance(action, dict) else {}
    else:
        values |= arguments_of(item.take("arguments"), item.at("arguments"))
    return ToolCall(**values, **_more(item, ToolCall))


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
    return ToolResult(call_id=call_id, content=blocks, is_error=failed, **_more(item, ToolResult))


def _more(item: Fields, kind: type[ToolCall | ToolResult]) -> dict[str, Any]:
    return beside(kind, {key: value for key, value in item.rest().items() if key not in _ITEM})
