"""OpenAI-style chat messages as ours, losing nothing; chat_view.py gives them back. Knows no file and no template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from tracemask.core.errors import TraceError
from tracemask.trace.chat_view import to_chat, trace_to_chat
from tracemask.trace.fields import Fields, first_problem
from tracemask.trace.model import (
    Block,
    Message,
    Reasoning,
    ToolCall,
    ToolResult,
    Trace,
)
from tracemask.trace.parse import DEEP, loads_text, too_deep
from tracemask.trace.parts import content_blocks
from tracemask.trace.plain import plain_message
from tracemask.trace.sampled import sampled_from_fields
from tracemask.trace.shape import known
from tracemask.trace.storable import not_json, refuse_unstorable

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
PART_SHAPE = known(
    "type text refusal cache_control annotations image detail format audio video file document title context",
    image_url=known("url detail"),
    input_audio=known("data format"),
    video_url=known("url"),
    audio_url=known("url"),
)
CALL_SHAPE = known("id type index name namespace arguments", function=known("name arguments"))
CHAT_SHAPE = known(
    "role name refusal reasoning_content reasoning thinking tool_call_id is_error function_call audio annotations "
    "provider_specific_fields",
    content=PART_SHAPE,
    tool_calls=CALL_SHAPE,
)
"""What formats that log chat messages know of them."""
_AUTHOR = {"system": "harness", "developer": "harness", "assistant": "policy", "tool": "environment"}
_NOT_TRAINED = ("weight", "train", "trainable")


def trace_from_chat(
    messages: Sequence[Mapping[str, Any]], tools: list[dict[str, Any]] | None = None, **scalars: Any
) -> Trace:
    """See Trace.from_messages."""
    from tracemask.trace.invariants import refuse_broken

    converted = messages_from_chat(messages)
    if not converted:
        raise TraceError("TM911", where="messages", what="no messages", fix="give at least one")
    for name, value in (("tools", tools), *scalars.items()):
        refuse_unstorable(value, name)
    if "id" not in scalars:
        scalars["id"] = _name_of(messages, tools)
    if scalars.get("truncated") is None:
        scalars["truncated"] = cut_short(converted)
    try:
        trace = Trace(messages=converted, tools=tools, **scalars)
    except ValidationError as error:
        field, reason = first_problem(error)
        raise TraceError("TM911", where=field, what=reason, fix="see `tracemask schema trace`") from None
    refuse_broken(trace)
    return trace


def _name_of(messages: Sequence[Mapping[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    """16 hex digits that the content alone decides."""

    def refuse(value: Any) -> None:
        raise not_json(value, "messages")

    content = json.dumps([messages, tools], sort_keys=True, default=refuse)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def cut_short(messages: Sequence[Message]) -> bool | None:
    """True where the last reply was cut by length or abort; None where nothing says so."""
    for message in reversed(messages):
        if message.role == "assistant":
            return True if message.cut_short else None
    return None


def messages_from_chat(messages: Any, *, where: str = "messages", clean: bool = True) -> list[Message]:
    """Messages with authors by role (first user: taskset). Raises TraceError TM911 naming where[i].field.

    clean: refuse lone surrogates; a reader that has already replaced them passes False.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        raise TraceError("TM911", where=where, what=f"expected a list of messages, found {type(messages).__name__}")
    out: list[Message] = []
    seen_user = False
    for index, raw in enumerate(cast("Sequence[Any]", messages)):
        place = f"{where}[{index}]"
        if clean:
            refuse_unstorable(raw, place)
        try:
            message = plain_message(raw, index, not seen_user)
            if message is None:
                if not clean and too_deep(raw):
                    raise TraceError("TM911", where=place, what="nested too deep", fix=f"at most {DEEP} levels")
                message = message_from_chat(raw, index, where=place, first_user=not seen_user)
        except ValidationError as error:
            field, reason = first_problem(error)
            raise TraceError(
                "TM911", where=f"{place}.{field}", what=reason, fix="see `tracemask schema trace`"
            ) from None
        seen_user = seen_user or message.role == "user"
        out.append(message)
    return out


def message_from_chat(raw: Any, index: int, *, where: str, first_user: bool = False) -> Message:
    """One chat message dict as a Message; unknown keys go to `extra`. Raises TraceError TM911 naming the field."""
    fields = Fields(raw, where)
    role_word = fields.take_str("role")
    if role_word is None:
        raise fields.error("role", "missing", fix="every message needs a role")
    role = _ROLES.get(role_word)
    if role is None:
        raise fields.error("role", f"unknown role {role_word!r}", fix=f"use one of {', '.join(_ROLES)}")
    name = fields.take_str("name")
    author = fields.take_str("author")
    if author is None:
        author = _AUTHOR.get(role) or ("taskset" if first_user else "user")
    values: dict[str, Any] = {"id": fields.take_id("id") or f"m{index}", "role": role, "author": author}
    if fields.has("parent"):
        values["parent"] = fields.take_id("parent")
    parts, blocks = _content(fields)
    if role == "assistant":
        blocks = [*_reasoning(fields), *blocks, *_calls(fields)]
        values["copied"] = fields.take_bool("copied") or _left_out(fields)
        values["finish_reason"] = fields.take_str("finish_reason")
    elif role == "tool":
        call_id = fields.take_id("tool_call_id")
        failed = fields.take_bool("is_error") or False
        blocks = [ToolResult(call_id=call_id, name=name, content=blocks, is_error=failed)]
    elif fields.has("copied"):
        values["copied"] = fields.take_bool("copied") or False
    sampled = sampled_from_fields(fields, reason=values.get("finish_reason"))
    if sampled is not None and role != "assistant":
        raise fields.error("token_ids", f"a {role} message has sampled ids", fix="only assistant replies are sampled")
    values.update(name=name, parts=parts, blocks=blocks, sampled=sampled, extra=fields.rest())
    if sampled is not None:
        values["finish_reason"] = None
    return _checked(values, where)


def _checked(values: dict[str, Any], where: str) -> Message:
    try:
        given: dict[str, Any] = {key: value for key, value in values.items() if value is not None or key == "parent"}
        return Message(**given)
    except ValidationError as error:
        field, reason = first_problem(error)
        raise TraceError("TM911", where=f"{where}.{field}", what=reason, fix="see `tracemask schema trace`") from None


def _left_out(fields: Fields) -> bool:
    """Fine-tuning logs mark replies that are context only: weight 0, train false, trainable false."""
    values = [fields.get(key) for key in _NOT_TRAINED if fields.has(key)]
    for key in _NOT_TRAINED:
        if fields.get(key) in (0, 1):
            fields.take(key)
    return any(value is False or value == 0 for value in values if isinstance(value, bool | int | float))


def _content(fields: Fields) -> tuple[bool, list[Block]]:
    """(content was a list, its blocks). Null or missing content gives no block; "" gives an empty Text."""
    content = fields.take("content")
    return isinstance(content, list), content_blocks(content, fields.at("content"))


def _reasoning(fields: Fields) -> list[Block]:
    """The first reasoning key that holds text; equal copies under other keys are one; different ones are an error."""
    found: dict[str, str] = {}
    for key in REASONING_KEYS:
        value = fields.get(key)
        if value is None or isinstance(value, str):
            fields.take(key)
            if value is not None:
                found[key] = value
    if len(set(found.values()) - {""}) > 1:
        raise fields.error(next(iter(found)), f"{' and '.join(found)} differ", fix="keep one reasoning key")
    for key, value in sorted(found.items(), key=lambda item: not item[1]):
        return [Reasoning(text=value, field=None if key == "reasoning_content" else key)]
    return []


def _calls(fields: Fields) -> list[Block]:
    calls = fields.take_list("tool_calls") or []
    out: list[Block] = [_call(raw, fields.at(f"tool_calls[{index}]")) for index, raw in enumerate(calls)]
    legacy = fields.take("function_call")
    if legacy is not None:
        out.append(_call(legacy, fields.at("function_call")))
    return out


def _call(raw: Any, where: str) -> ToolCall:
    outer = Fields(raw, where)
    call_id = outer.take_id("id")
    kind = outer.take("type")
    inner = outer
    if outer.get("function") is not None:
        inner = Fields(outer.take("function"), f"{where}.function")
    name = inner.take_str("name")
    if not name:
        raise inner.error("name", "missing", fix="a tool call needs the name of its function")
    values = arguments_of(inner.take("arguments"), inner.at("arguments"))
    extra = outer.rest() | (inner.rest() if inner is not outer else {})
    if kind not in (None, "function"):
        extra["call_type"] = kind
    return ToolCall(id=call_id, name=name, **values, **{key: extra[key] for key in extra if key not in values})


def arguments_of(value: Any, where: str) -> dict[str, Any]:
    """Fields of ToolCall: an object is kept as `arguments`, a string as `raw_arguments` plus what it parses to."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return {"arguments": dict(cast("Mapping[str, Any]", value))}
    if not isinstance(value, str):
        raise TraceError("TM911", where=where, what=f"expected an object or a string, found {type(value).__name__}")
    try:
        parsed = loads_text(value)
    except ValueError as error:
        return {"raw_arguments": value, "parse_error": str(error)[:200]}
    if isinstance(parsed, dict):
        return {"raw_arguments": value, "arguments": parsed}
    return {"raw_arguments": value, "parse_error": f"not an object but {type(parsed).__name__}"}


__all__ = [
    "CALL_SHAPE",
    "CHAT_SHAPE",
    "PART_SHAPE",
    "arguments_of",
    "cut_short",
    "message_from_chat",
    "messages_from_chat",
    "to_chat",
    "trace_from_chat",
    "trace_to_chat",
]
