"""Each invariant on a trace that keeps it and on one that breaks it."""

from __future__ import annotations

from typing import Any

import pytest

from tracemask.core.errors import TraceError
from tracemask.trace import Trace
from tracemask.trace.invariants import findings
from tracemask.trace.jsonl import from_json

CALL = {"id": "c", "function": {"name": "go", "arguments": "{}"}}
GOOD: list[dict[str, Any]] = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "", "tool_calls": [CALL], "token_ids": [1, 2], "logprobs": [-0.5, None]},
    {"role": "tool", "content": "r", "tool_call_id": "c"},
    {"role": "assistant", "content": "a", "token_ids": [3], "logprobs": [0.00005], "finish_reason": "stop"},
]


def codes(messages: list[dict[str, Any]], **scalars: Any) -> list[tuple[str, int | None]]:
    trace = Trace.from_messages(messages, **scalars)
    return [(finding.code, finding.place.turn) for finding in findings(trace)]


def test_a_sound_trace_has_no_findings() -> None:
    assert codes(GOOD, reward=1.0, rewards={"a": {"score": 0.5, "weight": 2.0}}) == []


def changed(index: int, **fields: Any) -> list[dict[str, Any]]:
    return [message | fields if position == index else message for position, message in enumerate(GOOD)]


def test_a_log_prob_above_zero_or_not_finite_is_tm404() -> None:
    for bad in (0.1, float("nan"), float("-inf")):
        assert codes(changed(1, logprobs=[-0.5, bad])) == [("TM404", 1)]


def test_double_encoded_arguments_are_tm104() -> None:
    call = {"id": "c", "function": {"name": "go", "arguments": '"{\\"x\\": 1}"'}}
    assert codes(changed(1, tool_calls=[call])) == [("TM104", 1)]


def test_a_result_that_answers_no_call_is_tm105() -> None:
    assert codes(changed(2, tool_call_id="other")) == [("TM105", 2), ("TM105", 3)]
    assert codes([GOOD[0], {"role": "tool", "content": "r"}]) == [("TM105", 1)]


def test_an_unanswered_call_is_tm105_unless_the_path_ends_there() -> None:
    assert codes([GOOD[0], GOOD[1], GOOD[3]]) == [("TM105", 2)]
    assert codes(GOOD[:2]) == []


def test_parallel_results_without_ids_are_resolved_by_order() -> None:
    two = changed(
        1, tool_calls=[{"function": {"name": "a", "arguments": "{}"}}, {"function": {"name": "b", "arguments": "{}"}}]
    )
    assert codes([*two[:2], {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}, two[3]]) == []


def test_a_cut_reply_in_a_trace_that_denies_it_is_tm107() -> None:
    cut = changed(3, finish_reason="length")
    assert codes(cut) == []
    assert codes(cut, truncated=False) == [("TM107", 3)]


def test_a_reward_that_is_not_the_sum_of_its_parts_is_tm110() -> None:
    assert codes(GOOD, reward=1.0, rewards={"a": {"score": 0.5}}) == [("TM110", None)]


def test_a_sampled_message_of_the_environment_is_tm110() -> None:
    assert codes(changed(3, author="environment")) == [("TM110", 3)]


def test_one_text_reply_by_two_authors_is_tm110() -> None:
    blocks = [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "author": "environment"}]
    trace = from_json({"id": "t", "messages": [{"id": "m", "role": "assistant", "author": "policy", "blocks": blocks}]})
    assert [finding.cause for finding in findings(trace)] == ["two_authors"]


def test_an_edge_to_nowhere_is_tm110() -> None:
    assert codes(GOOD, edges=[{"kind": "fork", "at": "m0", "to": "gone"}]) == [("TM110", None)]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"id": "m0"}, "TM110"),
        ({"parent": "gone"}, "TM110"),
        ({"id": "x", "parent": "x"}, "TM110"),
        ({"columns": {"entropy": [0.1]}}, "TM101"),
        ({"spans": [{"start": 1, "end": 3, "author": "environment"}]}, "TM101"),
        (
            {
                "spans": [
                    {"start": 1, "end": 2, "author": "environment"},
                    {"start": 0, "end": 1, "author": "environment"},
                ]
            },
            "TM101",
        ),
        ({"policy_version": [{"start": 0, "end": 9, "version": 1}]}, "TM101"),
    ],
)
def test_what_cannot_be_rendered_is_refused_at_once(message: dict[str, Any], code: str) -> None:
    with pytest.raises(TraceError, match=code):
        Trace.from_messages(changed(1, **message))
