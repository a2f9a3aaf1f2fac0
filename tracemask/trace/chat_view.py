"""A message as the chat dict that a template gets. Knows no file and no template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.trace.model import Block, Media, Message, Opaque, Text, ToolCall, Trace

_CONTENT = (Text, Media, Opaque)


def to_chat(message: Message, *, reasoning_field: str | None = None) -> dict[str, Any]:
    """The OpenAI-style dict that a chat template gets: role, content, reasoning, tool_calls, tool_call_id, name.

    content is the string, the list of parts where the source had one, or None where there was none. Arguments are the
    sampled string where the source has it, else the object. Reasoning comes under the key it was read from, or under
    `reasoning_field`. What the message had beside that (`extra`) is passed on. Raises TraceError TM911 where a message
    holds more than one tool result: a chat dict has room for one.
    """
    blocks: Sequence[Block] = message.blocks
    out: dict[str, Any] = {"role": message.role}
    results = [block for block in blocks if block.type == "tool_result"]
    result = results[0] if results else None
    if result is not None:
        if len(blocks) > 1:
            raise TraceError(
                "TM911",
                where=f"message {message.id}",
                what=f"a tool result and {len(blocks) - 1} more blocks in one message",
                fix="give each result a tool message of its own",
            )
        blocks = result.content
    out["content"] = _chat_content(blocks, parts=message.parts)
    thoughts = [block for block in blocks if block.type == "reasoning" and block.text is not None]
    if thoughts:
        key = reasoning_field or thoughts[0].field or "reasoning_content"
        out[key] = "".join(block.text or "" for block in thoughts)
    calls = [_chat_call(block) for block in blocks if block.type == "tool_call"]
    if calls:
        out["tool_calls"] = calls
    if result is not None and result.call_id is not None:
        out["tool_call_id"] = result.call_id
    name = message.name or (result.name if result else None)
    if name is not None:
        out["name"] = name
    for key, value in message.extra.items():
        if key != "log":
            out.setdefault(key, value)
    return out


def trace_to_chat(trace: Trace, branch: Sequence[Message] | int = 0) -> list[dict[str, Any]]:
    """to_chat of each message of one branch (its index in trace.branches(), or its messages)."""
    messages = trace.branches()[branch] if isinstance(branch, int) else branch
    return [to_chat(message) for message in messages]


def _chat_content(blocks: Sequence[Block], *, parts: bool) -> str | list[dict[str, Any]] | None:
    content = [block for block in blocks if isinstance(block, _CONTENT)]
    texts = [block.text for block in content if block.type == "text"]
    if parts or len(texts) < len(content):
        return [_chat_part(block) for block in content]
    return "".join(texts) if texts else None


def _chat_part(block: Text | Media | Opaque) -> dict[str, Any]:
    if isinstance(block, Text):
        return {"type": "text", "text": block.text, **(block.model_extra or {})}
    if isinstance(block, Media):
        return dict(block.part) if block.part else {"type": (block.mime or "file").split("/")[0]}
    return dict(cast("Mapping[str, Any]", block.data)) if isinstance(block.data, Mapping) else {"type": block.kind}


def _chat_call(call: ToolCall) -> dict[str, Any]:
    arguments = call.raw_arguments if call.raw_arguments is not None else call.arguments
    function = {"name": call.name, "arguments": {} if arguments is None else arguments}
    return {"type": "function", "function": function} | ({} if call.id is None else {"id": call.id})
