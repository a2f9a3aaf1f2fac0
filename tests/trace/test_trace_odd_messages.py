"""Messages from memory that no JSON text holds: a coded error that names the field, never a traceback."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest

from tracemask.core.errors import TraceError
from tracemask.trace.model import Reward, Trace

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


class Mood:
    pass


@pytest.mark.parametrize("id", [{}, {"id": "t"}])
@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Mood(), "Mood"),
        ({1, 2}, "set"),
        (b"x", "bytes"),
        (np.float32(1), "float32"),
        (np.zeros(2), "ndarray"),
        ([1, Mood()], "Mood"),
        (({"a": Mood()},), "Mood"),
        (datetime.date(2026, 1, 1), "date"),
    ],
    ids=["object", "set", "bytes", "numpy number", "numpy array", "after a number", "in a tuple", "date"],
)
def test_an_object_that_is_no_json_is_refused_wherever_it_stands(value: Any, kind: str, id: dict[str, str]) -> None:
    reply = {"role": "assistant", "content": "a"}
    for where, messages, more in (
        ("messages[1].more", [U, {**reply, "more": value}], {}),
        ("messages[1].tool_calls[0].function.arguments.a", [U, called({"a": value})], {}),
        ("tools[0].a", [U], {"tools": [{"a": value}]}),
        ("extra.a", [U], {"extra": {"a": value}}),
        ("template_kwargs.a", [U], {"template_kwargs": {"a": value}}),
    ):
        with pytest.raises(TraceError, match=f"TM911 JSON has no {kind}") as caught:
            Trace.from_messages(messages, **more, **id)
        assert caught.value.where.startswith(where) and caught.value.fix


def test_keys_that_are_no_strings_are_refused_where_they_would_change_when_stored() -> None:
    with pytest.raises(TraceError, match=r"messages\[0\]\.more: TM911 key 1 is no string"):
        Trace.from_messages([{**U, "more": {1: 2}}])


def test_fields_that_the_model_checks_may_be_objects() -> None:
    trace = Trace.from_messages([U], reward=np.float32(0.5), rewards={"judge": Reward(score=1.0)})
    assert (trace.reward, trace.rewards["judge"].score) == (0.5, 1.0)
    with pytest.raises(TraceError, match="TM911 JSON has no Reward"):
        Trace.from_messages([{**U, "more": Reward(score=1.0)}])
