"""Messages from memory that no JSON text holds: a coded error that names the field, never a traceback."""

from __future__ import annotations

from typing import Any

import pytest

from tracemask.core.errors import TraceError
from tracemask.trace.model import Trace

U = {"role": "user", "content": "hi"}


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def called(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}


def ring() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["x"] = value
    return value


@pytest.mark.parametrize("id", [{}, {"id": "t"}])
@pytest.mark.parametrize(
    "message",
    [
        called({"a": nested(5000)}),
        called(ring()),
        called({1: 2}),
        called({1: 2, "a": 3}),
        {"role": "assistant", "content": "a", "more": nested(5000)},
        {"role": "assistant", "content": [{"type": "text", "text": "a", "author": "wizard"}]},
    ],
    ids=["deep arguments", "ring", "integer key", "mixed keys", "deep extra", "unknown author of a part"],
)
def test_a_value_that_json_cannot_hold_is_refused_with_its_message(message: dict[str, Any], id: dict[str, str]) -> None:
    with pytest.raises(TraceError) as caught:
        Trace.from_messages([U, message], **id)
    assert caught.value.code == "TM911"
    assert caught.value.where.startswith("messages[1]")


def test_tools_that_are_nested_too_deep_are_refused() -> None:
    with pytest.raises(TraceError) as caught:
        Trace.from_messages([U], tools=[{"a": nested(5000)}])
    assert caught.value.code == "TM911" and caught.value.where.startswith("tools")


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"tools": [{"function": {"description": "a\ud83db"}}]}, "tools[0].function.description"),
        ({"id": "a\ud83db"}, "id"),
        ({"task_id": "a\ud83db"}, "task_id"),
        ({"template_kwargs": {"a\ud83db": 1}}, "template_kwargs.a\\ud83db"),
    ],
)
def test_a_lone_surrogate_beside_the_messages_is_refused_in_words_that_can_be_printed(
    given: dict[str, Any], where: str
) -> None:
    with pytest.raises(TraceError) as caught:
        Trace.from_messages([U], **given)
    assert (caught.value.code, caught.value.where) == ("TM911", where)
    str(caught.value).encode()
