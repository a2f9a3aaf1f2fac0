"""Chat messages to ours and back: nothing lost, nothing invented."""

from __future__ import annotations

from typing import Any

import pytest

from tracemask.core.errors import TraceError
from tracemask.trace import Trace, to_chat, trace_to_chat
from tracemask.trace.chat import message_from_chat
from tracemask.trace.model import Reasoning, ToolCall
from tracemask.trace.plain import plain_message

CALL = {"id": "c", "type": "function", "function": {"name": "go", "arguments": '{"y":[2,3],"x":1}'}}

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "https://x/1"}}],
    },
    {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALL]},
    {"role": "tool", "content": "t", "tool_call_id": "c", "name": "go"},
    {"role": "tool", "content": [{"type": "text", "text": "parts"}]},
    {"role": "assistant", "content": "", "thinking": "hm"},
    {"role": "user", "content": "u", "custom": {"kept": True}},
    {
        "role": "assistant",
        "content": "x",
        "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"t": 10**22}}}],
    },
]


def test_every_message_comes_back_as_the_dict_it_was() -> None:
    assert trace_to_chat(Trace.from_messages(MESSAGES)) == MESSAGES


def test_arguments_keep_the_sampled_string_and_its_parsed_form() -> None:
    call = Trace.from_messages(MESSAGES).messages[2].blocks[1]
    assert isinstance(call, ToolCall)
    assert call.raw_arguments == '{"y":[2,3],"x":1}'
    assert call.arguments == {"y": [2, 3], "x": 1}


def test_arguments_that_do_not_parse_are_kept_and_say_why() -> None:
    broken = {"function": {"name": "go", "arguments": '{"x": '}}
    call = Trace.from_messages([{"role": "assistant", "tool_calls": [broken]}]).messages[0].blocks[0]
    assert isinstance(call, ToolCall)
    assert call.raw_arguments == '{"x": '
    assert call.arguments is None
    assert call.parse_error is not None


def test_integers_beyond_64_bits_in_an_argument_string_stay_exact() -> None:
    big = {"function": {"name": "go", "arguments": '{"x": 123456789012345678901234567890}'}}
    call = Trace.from_messages([{"role": "assistant", "tool_calls": [big]}]).messages[0].blocks[0]
    assert isinstance(call, ToolCall)
    assert call.arguments == {"x": 123456789012345678901234567890}


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_is_read_from_every_key_and_given_back_under_it(key: str) -> None:
    message = Trace.from_messages([{"role": "assistant", "content": "a", key: "why"}]).messages[0]
    assert isinstance(message.blocks[0], Reasoning)
    assert to_chat(message) == {"role": "assistant", "content": "a", key: "why"}
    assert to_chat(message, reasoning_field="thinking")["thinking"] == "why"


def test_two_reasoning_keys_that_differ_are_an_error_and_equal_ones_are_one() -> None:
    twice = {"role": "assistant", "content": "a", "reasoning": "why", "reasoning_content": "why"}
    assert len([b for b in Trace.from_messages([twice]).messages[0].blocks if isinstance(b, Reasoning)]) == 1
    with pytest.raises(TraceError, match=r"messages\[0\]\.reasoning.*differ"):
        Trace.from_messages([twice | {"reasoning": "other"}])


def test_think_tags_in_content_are_left_alone() -> None:
    text = "<think>\nweigh\n</think>\n\nTake B."
    message = Trace.from_messages([{"role": "assistant", "content": text}]).messages[0]
    assert to_chat(message)["content"] == text


def test_authors_follow_the_role_and_only_the_first_user_message_is_the_task() -> None:
    roles = ["system", "user", "assistant", "tool", "user", "developer"]
    trace = Trace.from_messages([{"role": role, "content": ""} for role in roles])
    assert [message.author for message in trace.messages] == [
        "harness",
        "taskset",
        "policy",
        "environment",
        "user",
        "harness",
    ]


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}, {"trainable": False}])
def test_replies_marked_as_context_are_not_from_the_policy(mark: dict[str, Any]) -> None:
    message = Trace.from_messages([{"role": "assistant", "content": "a"} | mark]).messages[0]
    assert message.copied
    assert not message.from_policy


def test_a_reply_cut_by_length_makes_the_trace_truncated_and_silence_does_not() -> None:
    reply = {"role": "assistant", "content": "a"}
    assert Trace.from_messages([reply | {"finish_reason": "length"}]).truncated is True
    assert Trace.from_messages([reply | {"finish_reason": "stop"}]).truncated is None


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"content": "x"}, "messages[0].role"),
        ({"role": "narrator", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 3}, "messages[0].content"),
        ({"role": "user", "content": "lone \ud83d half"}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": "x", "token_ids": [1]}, "messages[0].token_ids"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            "messages[0].tool_calls[0].function.arguments",
        ),
        ({"role": "assistant", "token_ids": [1], "logprobs": ["a"]}, "messages[0].logprobs[0]"),
        ("words", "messages[0]"),
    ],
)
def test_a_bad_message_is_an_error_that_names_the_field(message: Any, field: str) -> None:
    with pytest.raises(TraceError) as caught:
        Trace.from_messages([message])
    assert caught.value.code == "TM911"
    assert caught.value.where == field


def test_log_probs_without_their_ids_are_kept_but_not_placed() -> None:
    message = Trace.from_messages([{"role": "assistant", "content": "a", "logprobs": [-0.5]}]).messages[0]
    assert message.sampled is None
    assert message.extra == {"logprobs": [-0.5]}


def test_tokens_of_log_probs_that_spell_their_ids_are_the_ids() -> None:
    entries = [{"token": "token_id:7", "logprob": -0.5}, {"token": "token_id:9", "logprob": -0.25}]
    reply = {"role": "assistant", "content": "a", "logprobs": {"content": entries}, "prompt_token_ids": [1]}
    sampled = Trace.from_messages([reply]).messages[0].sampled
    assert sampled is not None
    assert (sampled.token_ids, sampled.logprobs, sampled.prompt_ids) == ([7, 9], [-0.5, -0.25], [1])
    for word in ("a", "token_id:", "token_id:-1", "token_id:²", "token_id:1e3"):
        changed = {**reply, "logprobs": {"content": [entries[0], {"token": word, "logprob": -1.0}]}}
        assert Trace.from_messages([changed]).messages[0].sampled is None


def test_unequal_lengths_are_an_error_that_states_both() -> None:
    with pytest.raises(TraceError, match=r"TM101 2 log-probs for 3 sampled token ids"):
        Trace.from_messages([{"role": "assistant", "token_ids": [1, 2, 3], "logprobs": [-1.0, -1.0]}])


def test_a_trace_without_an_id_is_named_by_its_content() -> None:
    first, again = Trace.from_messages(MESSAGES), Trace.from_messages(MESSAGES)
    assert first.id == again.id
    assert first.id != Trace.from_messages(MESSAGES[:2]).id


def test_the_fast_lane_gives_what_the_slow_one_gives() -> None:
    plain: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": None, "reasoning_content": "r", "tool_calls": [CALL]},
        {"role": "assistant", "content": "a", "reasoning_content": "", "tool_calls": []},
        {"role": "tool", "content": "t"},
        {"role": "tool", "content": "t", "tool_call_id": "c", "name": "go"},
    ]
    for index, raw in enumerate(plain):
        for first in (True, False):
            fast = plain_message(raw, index, first)
            assert fast == message_from_chat(raw, index, where="m", first_user=first)
            assert fast is not None
            assert "parent" not in fast.model_fields_set


@pytest.mark.parametrize(
    "raw",
    [
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "user", "content": "x", "name": "n"},
        {"role": "assistant", "content": "x", "token_ids": [1]},
        {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        {"role": "assistant", "content": "x", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "{"}}]},
        {
            "role": "assistant",
            "content": "x",
            "tool_calls": [CALL | {"function": {"name": "f", "arguments": f'{{"x": {10**30}}}'}}],
        },
        {"role": "tool", "content": "x", "tool_call_id": 7},
        {"role": "narrator", "content": "x"},
        "words",
    ],
)
def test_the_fast_lane_leaves_what_is_not_plain(raw: Any) -> None:
    assert plain_message(raw, 0, first_user=True) is None


def test_a_message_of_two_results_is_refused_instead_of_losing_one() -> None:
    result = {"type": "tool_result", "content": [{"type": "text", "text": "r"}]}
    message = {"id": "m", "role": "tool", "author": "environment", "blocks": [result, result]}
    trace = Trace.model_validate({"id": "t", "messages": [message]})
    with pytest.raises(TraceError, match=r"message m: TM911 a tool result and 1 more blocks"):
        to_chat(trace.messages[0])


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "https://x/1.mp4"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "hologram", "x": 1},
        {"type": "refusal", "refusal": "no"},
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_parts_that_are_no_text_come_back_whole_in_every_role(part: dict[str, Any], role: str) -> None:
    message = {"role": role, "content": [{"type": "text", "text": "see"}, part]}
    trace = Trace.from_messages([message])
    assert trace_to_chat(trace) == [message]
    assert trace_to_chat(Trace.model_validate_json(trace.model_dump_json())) == [message]
