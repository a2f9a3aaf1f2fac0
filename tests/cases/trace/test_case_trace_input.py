"""Reported failures of input: each with the text that caused it and what must come out instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracemask.core.errors import TraceError
from tracemask.trace import Trace, read_traces, to_chat
from tracemask.trace.jsonl import dumps, from_json, to_json

AT = '{"messages": [{"role": "user", "content": "At?"}, {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "at", "arguments": %s}}]}]}'  # noqa: E501
ARGUMENTS = ['{"t": "06:30"}', '{"t": 1690}', "{}", '{"t": 10000000000000000000000}']


def test_a_bad_row_is_named_by_file_line_and_field_and_the_good_ones_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}\n'
        '{"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]}\n'
        '{"messages": [{"role": "user"\n'
        '{"messages": [{"role": "narrator", "content": "e"}]}\n'
    )
    reading = read_traces(path)
    assert len(list(reading)) == 2
    third, fourth = reading.skipped
    assert (third.code, third.where) == ("TM910", "rows.jsonl:3")
    assert "invalid JSON" in third.what
    assert (fourth.code, fourth.where) == ("TM911", "rows.jsonl:4:messages[0].role")
    assert "unknown role 'narrator'" in fourth.what
    with pytest.raises(TraceError, match=r"rows\.jsonl:3"):
        list(read_traces(path, on_error="fail"))


def test_a_lone_surrogate_in_tool_output_is_replaced_and_reported_with_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": [{"role": "tool", "content": "lone \\ud83d half"}]}\n')
    reading = read_traces(path)
    (trace,) = reading
    assert to_chat(trace.messages[0])["content"] == "lone � half"
    (finding,) = reading.findings
    assert (finding.code, finding.place.line, finding.data["field"]) == ("TM916", 1, "messages[0].content")
    assert "surrogate" in finding.message
    with pytest.raises(TraceError, match=r"messages\[0\]\.content.*surrogate"):
        Trace.from_messages([{"role": "tool", "content": "lone \ud83d half"}])


def test_a_surrogate_pair_is_one_character_and_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "\\ud83d\\ude00"}], "n": 10000000000000000000000}\n')
    reading = read_traces(path)
    (trace,) = reading
    assert trace.messages[0].text() == "😀"
    assert reading.findings == []


def test_one_argument_may_be_a_string_a_number_absent_or_beyond_64_bits_and_all_come_back(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(AT % arguments for arguments in ARGUMENTS))
    traces = list(read_traces(path))
    for trace, arguments in zip(traces, ARGUMENTS, strict=True):
        again = from_json(json.loads(dumps(to_json(trace))))
        value = to_chat(again.messages[1])["tool_calls"][0]["function"]["arguments"]
        assert json.dumps(value) == arguments


def test_an_argument_string_is_kept_to_the_byte_and_an_object_stays_an_object() -> None:
    variants: list[Any] = [{"x": 1, "y": [2, 3]}, '{"x": 1, "y": [2, 3]}', '{"y":[2,3],"x":1}']
    for arguments in variants:
        call = {"type": "function", "function": {"name": "go", "arguments": arguments}}
        trace = Trace.from_messages([{"role": "assistant", "content": "", "tool_calls": [call]}])
        assert to_chat(trace.messages[0])["tool_calls"] == [call]


@pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
def test_null_and_missing_content_are_none_and_never_the_word(message: dict[str, Any]) -> None:
    call = {"type": "function", "function": {"name": "log", "arguments": {}}}
    chat = to_chat(Trace.from_messages([message | {"tool_calls": [call]}]).messages[0])
    assert chat["content"] is None
    assert chat["tool_calls"] == [call]


def test_two_assistant_messages_in_a_row_stay_two() -> None:
    messages = [
        {"role": "user", "content": "Count."},
        {"role": "assistant", "content": "one"},
        {"role": "assistant", "content": "two"},
    ]
    trace = Trace.from_messages(messages)
    assert [to_chat(message) for message in trace.messages] == messages


def test_unequal_lengths_name_both_and_are_never_cut_to_fit(tmp_path: Path) -> None:
    record = {
        "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "a", "token_ids": list(range(12)), "logprobs": [-0.1] * 11},
        ]
    }
    (tmp_path / "rows.jsonl").write_text(json.dumps(record))
    reading = read_traces(tmp_path / "rows.jsonl")
    assert list(reading) == []
    assert reading.skipped[0].what == "11 log-probs for 12 sampled token ids"


def test_ids_and_log_probs_are_not_narrowed() -> None:
    reply = {"role": "assistant", "content": "", "token_ids": [151668, 7, 8], "logprobs": [-10.03, -70000.0, -1e-08]}
    sampled = from_json(json.loads(dumps(to_json(Trace.from_messages([reply]))))).messages[0].sampled
    assert sampled is not None
    assert sampled.token_ids == [151668, 7, 8]
    assert sampled.logprobs == [-10.03, -70000.0, -1e-08]


def steps(*calls: tuple[list[int], list[int]]) -> list[dict[str, Any]]:
    return [
        {
            "prompt": [{"role": "user", "content": f"u{i}"}],
            "completion": [{"role": "assistant", "content": f"a{i}"}],
            "tokens": {"prompt_ids": prompt, "completion_ids": completion, "completion_mask": [1] * len(completion)},
        }
        for i, (prompt, completion) in enumerate(calls)
    ]


def test_a_prompt_shorter_than_the_last_one_is_kept_as_it_is(tmp_path: Path) -> None:
    calls = [([1, 2], [3]), ([1, 2, 3, 4], [50, 51]), ([1, 50, 51, 7], [8])]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"trajectory": steps(*calls), "reward": 1.0}))
    (trace,) = read_traces(tmp_path / "rows.jsonl")
    sampled = [message.sampled for message in trace.messages if message.sampled]
    assert [(call.prompt_ids, call.token_ids) for call in sampled] == calls
    assert [edge.kind for edge in trace.edges] == ["rewrite", "rewrite"]


def test_reports_hold_the_whole_list_of_refused_rows_not_the_first_only(tmp_path: Path) -> None:
    good = AT % "{}"
    (tmp_path / "rows.jsonl").write_text("\n".join([good, *["{", '{"messages": 1}', '{"messages": []}'] * 5]))
    reading = read_traces(tmp_path / "rows.jsonl")
    assert len(list(reading)) == 1
    assert [error.where.split(":")[1] for error in reading.skipped] == [str(line) for line in range(2, 17)]
