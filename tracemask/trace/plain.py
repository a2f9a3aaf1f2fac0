"""The fast lane of chat import: messages of the commonest shapes, built without validation that cannot fail.

Whatever is not exactly of these shapes is left to chat.py, which gives the same for what is here (a test compares).
"""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import BaseModel

from tracemask.trace.model import Message, Reasoning, Text, ToolCall, ToolResult
from tracemask.trace.parse import DEEP, may_hold_long_integer

_new = object.__new__
# The slots themselves: going through the models' __setattr__ costs a quarter more.
_set_values = vars(BaseModel)["__dict__"].__set__
_set_given = vars(BaseModel)["__pydantic_fields_set__"].__set__
_set_extra = vars(BaseModel)["__pydantic_extra__"].__set__
_set_private = vars(BaseModel)["__pydantic_private__"].__set__
_GIVEN = {"id", "role", "author", "blocks", "extra", "parts", "copied"}
_TOOL_KEYS = frozenset({"role", "content", "tool_call_id", "name"})
_REPLY_KEYS = frozenset({"role", "content", "reasoning_content", "tool_calls"})
_MESSAGE = dict(vars(Message.model_construct(id="", role="user", author="user")))
_RESULT = dict(vars(ToolResult.model_construct()))
_REASONING = dict(vars(Reasoning.model_construct()))
_CALL = dict(vars(ToolCall.model_construct(name="")))
_SHORT = 19  # below it no integer of the text can leave 64 bits


def _build(kind: Any, values: dict[str, Any], given: set[str]) -> Any:
    """An instance of a model that takes over complete, already valid values."""
    made = _new(kind)
    _set_values(made, values)
    _set_given(made, given)
    _set_extra(made, {})
    _set_private(made, None)
    return made


def _text(text: str) -> Text:
    return _build(Text, {"type": "text", "text": text, "author": None}, {"text"})


def _message(index: int, role: str, author: str, blocks: list[Any]) -> Message:
    values = _MESSAGE.copy()
    values["id"] = f"m{index}"
    values["role"] = role
    values["author"] = author
    values["blocks"] = blocks
    values["extra"] = {}
    return _build(Message, values, _GIVEN.copy())


def plain_message(raw: Any, index: int, first_user: bool) -> Message | None:
    """The message, or None where it is not of a plain shape: text content, no ids, no key but the usual ones."""
    if type(raw) is not dict:
        return None
    role, content = raw.get("role"), raw.get("content")
    if type(role) is not str:
        return None
    if role == "tool":
        return _tool(raw, content, index)
    if role == "assistant":
        return _reply(raw, content, index)
    if type(content) is not str or len(raw) != 2:
        return None
    if role == "user":
        return _message(index, "user", "taskset" if first_user else "user", [_text(content)])
    return _message(index, "system", "harness", [_text(content)]) if role == "system" else None


def _tool(raw: dict[str, Any], content: Any, index: int) -> Message | None:
    call_id, name = raw.get("tool_call_id"), raw.get("name")
    if type(content) is not str or not raw.keys() <= _TOOL_KEYS:
        return None
    if (call_id is not None and type(call_id) is not str) or (name is not None and type(name) is not str):
        return None
    values = _RESULT.copy()
    values["call_id"], values["name"], values["content"] = call_id, name, [_text(content)]
    result = _build(ToolResult, values, {"call_id", "name", "content", "is_error"})
    message = _message(index, "tool", "environment", [result])
    vars(message)["name"] = name
    return message


def _reply(raw: dict[str, Any], content: Any, index: int) -> Message | None:
    thought, calls = raw.get("reasoning_content"), raw.get("tool_calls")
    if not raw.keys() <= _REPLY_KEYS or not (content is None or type(content) is str):
        return None
    blocks: list[Any] = []
    if thought is not None:
        if type(thought) is not str:
            return None
        values = _REASONING.copy()
        values["text"] = thought
        blocks.append(_build(Reasoning, values, {"text", "field"}))
    if content is not None:
        blocks.append(_text(content))
    if calls is not None:
        if type(calls) is not list:
            return None
        for raw_call in calls:
            call = _call(raw_call)
            if call is None:
                return None
            blocks.append(call)
    return _message(index, "assistant", "policy", blocks)


def _call(raw: Any) -> ToolCall | None:
    """A call with an id, type function, and short arguments as a string that is a JSON object."""
    if type(raw) is not dict or len(raw) != 3 or raw.get("type") != "function":
        return None
    function, call_id = raw.get("function"), raw.get("id")
    if type(function) is not dict or len(function) != 2 or type(call_id) is not str:
        return None
    name, arguments = function.get("name"), function.get("arguments")
    if type(name) is not str or not name or type(arguments) is not str:
        return None
    if len(arguments) >= _SHORT and (not arguments.isascii() or may_hold_long_integer(arguments.encode())):
        return None
    if len(arguments) > DEEP and arguments.count("{") + arguments.count("[") > DEEP:
        return None
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return None
    if type(parsed) is not dict:
        return None
    values = _CALL.copy()
    values["id"], values["name"], values["raw_arguments"], values["arguments"] = call_id, name, arguments, parsed
    return _build(ToolCall, values, {"id", "name", "raw_arguments", "arguments"})
