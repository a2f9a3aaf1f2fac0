"""OpenAI-style chat messages to our messages and back, losing nothing either way. Knows no file and no template."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from tracemask.core.errors import TraceError
from tracemask.trace.fields import Fields, first_problem
from tracemask.trace.model import (
    Block,
    Media,
    Message,
    Opaque,
    Reasoning,
    Sampled,
    Text,
    ToolCall,
    ToolResult,
    Trace,
)
from tracemask.trace.parse import loads_text
from tracemask.trace.plain import plain_message
from tracemask.trace.sampled import sampled_from_fields
from tracemask.trace.storable import refuse_unstorable

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_ROLES = {
    "system": "system",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_AUTHOR = {"system": "harness", "developer": "harness", "assistant": "policy", "tool": "environment"}
_NOT_TRAINED = ("weight", "train", "trainable")


# ------------------------------------------------------------------------------------------------ chat → trace


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
    try:
        content = json.dumps([messages, tools], sort_keys=True, default=str)
    except TypeError as error:  # keys of several types, which JSON does not have
        raise TraceError("TM911", where="messages", what=f"no JSON: {error}", fix="use strings as keys") from None
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
    if content is None:
        return False, []
    if isinstance(content, str):
        return False, [Text(text=content)]
    if not isinstance(content, list):
        raise fields.error("content", f"expected a string, null or a list of parts, found {type(content).__name__}")
    parts = cast("list[Any]", content)
    return True, [_part(part, fields.at(f"content[{index}]")) for index, part in enumerate(parts)]


def _part(raw: Any, where: str) -> Block:
    if isinstance(raw, str):
        return Text(text=raw)
    part = Fields(raw, where)
    kind = part.take_str("type") or ("text" if part.has("text") else None)
    if kind in ("text", "input_text", "output_text"):
        text = part.take_str("text")
        if text is None:
            raise part.error("text", "missing")
        return Text(text=text, **part.rest())
    if kind in ("image_url", "image", "input_image", "audio", "input_audio", "video", "file"):
        kind = kind.removeprefix("input_").removesuffix("_url")
        return Media(mime=f"{kind}/*", uri=_uri(part.raw), part=dict(part.raw))
    if kind is None:
        raise part.error("type", "missing", fix="a content part needs a type")
    return Opaque(kind=kind, data=part.raw)


def _uri(part: Mapping[str, Any]) -> str | None:
    """The address of a media part, where it is one and not the data itself."""
    for value in part.values():
        value = cast("Mapping[str, Any]", value).get("url") if isinstance(value, Mapping) else value
        if isinstance(value, str) and "://" in value[:12]:
            return value
    return None


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


# ------------------------------------------------------------------------------------------------ trace → chat


def to_chat(message: Message, *, reasoning_field: str | None = None) -> dict[str, Any]:
    """The OpenAI-style dict that a chat template gets: role, content, reasoning, tool_calls, tool_call_id, name.

    content is the string, the list of parts where the source had one, or None where there was none. Arguments are the
    sampled string where the source has it, else the object. Reasoning comes under the key it was read from, or under
    `reasoning_field`. What the message had beside that (`extra`) is passed on.
    """
    blocks: Sequence[Block] = message.blocks
    out: dict[str, Any] = {"role": message.role}
    result = next((block for block in blocks if isinstance(block, ToolResult)), None)
    if result is not None:
        blocks = result.content
    out["content"] = _chat_content(blocks, parts=message.parts)
    thoughts = [block for block in blocks if isinstance(block, Reasoning) and block.text is not None]
    if thoughts:
        key = reasoning_field or thoughts[0].field or "reasoning_content"
        out[key] = "".join(block.text or "" for block in thoughts)
    calls = [_chat_call(block) for block in blocks if isinstance(block, ToolCall)]
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
    content = [block for block in blocks if isinstance(block, Text | Media | Opaque)]
    if parts or any(not isinstance(block, Text) for block in content):
        return [_chat_part(block) for block in content]
    if not content:
        return None
    return "".join(block.text for block in content if isinstance(block, Text))


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


__all__ = [
    "Sampled",
    "arguments_of",
    "message_from_chat",
    "messages_from_chat",
    "to_chat",
    "trace_from_chat",
    "trace_to_chat",
]
