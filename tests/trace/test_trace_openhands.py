"""OpenHands conversations as the SDK and the older app write them: ids, reasoning, rejections, images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracemask.core.vocab import Fidelity
from tracemask.trace import Reading, Trace, read_traces
from tracemask.trace.model import Media, Reasoning, Text, ToolCall, ToolResult

USER = {
    "kind": "MessageEvent",
    "source": "user",
    "llm_message": {"role": "user", "content": [{"type": "text", "text": "Sail."}]},
}


def action(name: str, response: str, **more: Any) -> dict[str, Any]:
    call = {"id": name, "name": "bash", "arguments": '{"command": "ls"}', "origin": "completion"}
    return {
        "kind": "ActionEvent",
        "source": "agent",
        "thought": [{"type": "text", "text": "I look."}],
        "tool_name": "bash",
        "tool_call_id": name,
        "tool_call": call,
        "llm_response_id": response,
        **more,
    }


def observed(name: str, **observation: Any) -> dict[str, Any]:
    content = observation.pop("content", [{"type": "text", "text": "ropes"}])
    return {
        "kind": "ObservationEvent",
        "source": "environment",
        "tool_name": "bash",
        "tool_call_id": name,
        "action_id": "x",
        "observation": {"kind": "TerminalObservation", "content": content, **observation},
    }


def reading(folder: Path, *events: dict[str, Any]) -> Reading:
    rows = [{"id": f"e{index}", "timestamp": "2026-01-01T00:00:00", **event} for index, event in enumerate(events)]
    (folder / "run.json").write_text(json.dumps(rows))
    return read_traces(folder / "run.json", format="openhands")


def trace(folder: Path, *events: dict[str, Any]) -> Trace:
    found = reading(folder, *events)
    (one,) = found
    assert found.skipped == []
    return one


def tokens(prompt: list[int], response: list[int]) -> dict[str, Any]:
    return {"kind": "TokenEvent", "source": "agent", "prompt_token_ids": prompt, "response_token_ids": response}


@pytest.mark.parametrize("late", [True, False])
def test_token_events_give_each_reply_its_exact_ids(late: bool, tmp_path: Path) -> None:
    first, ids = [action("k1", "r1"), observed("k1")], tokens([1, 2], [3, 4])
    said = {"kind": "MessageEvent", "source": "agent", "llm_message": {"role": "assistant", "content": "Done."}}
    events = [*first, ids] if late else [first[0], ids, first[1]]  # before or after the call was carried out
    found = trace(tmp_path, USER, *events, said, tokens([1, 2, 3, 4, 5], [6]))
    assert found.fidelity is Fidelity.EXACT
    calls = [message.sampled for message in found.messages if message.sampled]
    assert [(call.prompt_ids, call.token_ids) for call in calls] == [([1, 2], [3, 4]), ([1, 2, 3, 4, 5], [6])]
    assert [message.role for message in found.messages] == ["user", "assistant", "tool", "assistant"]


def test_ids_of_a_reply_that_is_not_there_are_noted(tmp_path: Path) -> None:
    found = reading(tmp_path, USER, tokens([1], [2]), action("k1", "r1"), tokens([1], [3]), tokens([1], [4]))
    (one,) = found
    assert [message.sampled.token_ids for message in one.messages if message.sampled] == [[3]]
    assert found.notes["token ids of a reply that is not in this log"] == 2


def test_what_the_agents_context_adds_is_part_of_what_the_model_saw(tmp_path: Path) -> None:
    more = [{"type": "text", "text": "Rule: knots."}]
    system = {
        "kind": "SystemPromptEvent",
        "source": "agent",
        "system_prompt": {"type": "text", "text": "You sail."},
        "dynamic_context": {"type": "text", "text": " Today is calm."},
        "tools": [],
    }
    found = trace(
        tmp_path,
        system,
        USER | {"extended_content": more},
        action("k1", "r1"),
        observed("k1") | {"extended_content": more},
    )
    assert [message.text() for message in found.messages] == [
        "You sail. Today is calm.",
        "Sail.Rule: knots.",
        "I look.",
        "ropesRule: knots.",
    ]
    assert [block.author for block in found.messages[1].blocks] == [None, "harness"]


def test_reasoning_is_kept_in_the_form_that_says_most(tmp_path: Path) -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s=="},
        {"type": "redacted_thinking", "data": "opaque"},
    ]
    item = {"id": "rs", "summary": ["Weigh."], "content": None, "encrypted_content": "gAAA", "status": None}
    found = trace(
        tmp_path,
        USER,
        action("k1", "r1", thinking_blocks=blocks, reasoning_content="Hm."),
        observed("k1"),
        action("k2", "r2", responses_reasoning_item=item),
        observed("k2"),
        action("k3", "r3", reasoning_content="Plain."),
    )
    thoughts = [block for message in found.messages for block in message.blocks if isinstance(block, Reasoning)]
    assert [(b.text, b.signature, b.encrypted, b.redacted) for b in thoughts] == [
        ("Hm.", "s==", None, False),
        (None, None, "opaque", True),
        ("Weigh.", None, "gAAA", True),
        ("Plain.", None, None, False),
    ]


def test_rejections_and_failures_are_what_the_model_was_told(tmp_path: Path) -> None:
    rejected = {
        "kind": "UserRejectObservation",
        "source": "user",
        "tool_name": "bash",
        "tool_call_id": "k1",
        "action_id": "e1",
        "rejection_reason": "too risky",
        "rejection_source": "user",
    }
    found = trace(tmp_path, USER, action("k1", "r1"), rejected, action("k2", "r2"), observed("k2", is_error=True))
    results = [block for message in found.messages for block in message.blocks if isinstance(block, ToolResult)]
    assert [result.is_error for result in results] == [True, True]
    assert found.messages[2].text() == "Action rejected: too risky"


def test_an_error_between_two_actions_of_one_response_does_not_split_the_reply(tmp_path: Path) -> None:
    error = {"kind": "AgentErrorEvent", "source": "agent", "tool_name": "bash", "tool_call_id": "k1", "error": "no"}
    found = trace(tmp_path, USER, action("k1", "r1"), error, action("k2", "r1"), observed("k2"))
    replies = [message for message in found.messages if message.role == "assistant"]
    assert [[block.id for block in reply.blocks if isinstance(block, ToolCall)] for reply in replies] == [["k1", "k2"]]


def test_images_of_messages_and_observations_do_not_vanish(tmp_path: Path) -> None:
    image = {"type": "image", "image_urls": ["data:image/png;base64,AAAA"]}
    user = {"kind": "MessageEvent", "source": "user", "llm_message": {"role": "user", "content": [image]}}
    found = trace(tmp_path, user, action("k1", "r1"), observed("k1", content=[image]))
    media = [block for message in found.messages for block in message.blocks if isinstance(block, Media)]
    result = found.messages[2].blocks[0]
    assert isinstance(result, ToolResult)
    assert [block.part for block in (*media, *result.content) if isinstance(block, Media)] == [image, image]


def test_a_rejection_or_request_among_the_first_events_is_recognised(tmp_path: Path) -> None:
    rows = [
        {"id": "0", "source": "user", **USER},
        {"id": "1", "source": "environment", "kind": "CondensationRequest"},
        {"id": "2", "source": "user", "kind": "UserRejectObservation", "tool_name": "b", "tool_call_id": "k"},
    ]
    (tmp_path / "run.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read_traces(tmp_path / "run.jsonl").format == "openhands"


def test_errors_of_a_conversation_are_the_traces(tmp_path: Path) -> None:
    found = trace(
        tmp_path, USER, {"kind": "ConversationErrorEvent", "source": "agent", "code": "Stuck", "detail": "loop"}
    )
    assert found.errors == ["Stuck: loop"]


def test_a_range_of_forgotten_events_costs_no_more_than_the_events_there_are(tmp_path: Path) -> None:
    rows = [
        {"id": 0, "source": "user", "action": "message", "args": {"content": "Sail."}},
        {"id": 1, "source": "agent", "action": "think", "args": {"thought": "Hm."}},
        {
            "id": 2,
            "source": "agent",
            "action": "condensation",
            "args": {
                "forgotten_events_start_id": 1,
                "forgotten_events_end_id": 10**15,
                "summary": "S",
                "summary_offset": -1,
            },
        },
        {"id": 3, "source": "agent", "action": "finish", "args": {"final_thought": "Done."}},
    ]
    (tmp_path / "run.json").write_text(json.dumps(rows))
    (found,) = read_traces(tmp_path / "run.json")
    assert [message.text() for message in found.branches()[-1]] == ["S", "Sail.", "Done."]


def test_the_older_app_gives_the_engines_ids_where_it_asked_for_them(tmp_path: Path) -> None:
    choice = {
        "finish_reason": "length",
        "message": {"role": "assistant", "content": "I look."},
        "provider_specific_fields": {"token_ids": [7, 8]},
        "logprobs": {"content": [{"token": "I", "logprob": -0.5}, {"token": " look", "logprob": -0.25}]},
    }
    response = {"id": "r", "model": "policy", "choices": [choice], "prompt_token_ids": [1, 2]}
    meta = {"tool_call_id": "k", "function_name": "bash", "total_calls_in_response": 1, "model_response": response}
    rows = [
        {
            "id": 0,
            "source": "user",
            "action": "message",
            "args": {"content": "Sail.", "image_urls": ["https://x/1.png"]},
        },
        {"id": 1, "source": "agent", "action": "run", "args": {"command": "ls"}, "tool_call_metadata": meta},
    ]
    (tmp_path / "run.json").write_text(json.dumps(rows))
    (found,) = read_traces(tmp_path / "run.json")
    sampled = found.messages[1].sampled
    assert sampled is not None
    assert (sampled.prompt_ids, sampled.token_ids, sampled.logprobs) == ([1, 2], [7, 8], [-0.5, -0.25])
    assert found.truncated is True
    assert isinstance(found.messages[0].blocks[1], Media)


def test_events_of_a_conversation_that_was_gone_back_in_are_branches(tmp_path: Path) -> None:
    state = {"kind": "ConversationStateUpdateEvent", "source": "environment", "key": "k", "value": 1}
    said = {"kind": "MessageEvent", "source": "agent", "llm_message": {"role": "assistant", "content": "Done."}}
    again = {**USER, "llm_message": {"role": "user", "content": "Anew."}}
    found = reading(
        tmp_path,
        USER,
        action("k1", "r1", parent_id="e0"),
        state | {"parent_id": "e1"},
        observed("k1") | {"parent_id": "e1"},  # state updates are no part of the tree
        said | {"parent_id": "e3"},
        action("k2", "r2", parent_id="e0"),  # back to the first message
        observed("k2") | {"parent_id": "e5"},
        again | {"parent_id": "__root__"},
        said | {"parent_id": "e7"},
    )
    (one,) = found
    assert found.skipped == []
    assert dict(found.unknown_fields) == {"key": 1, "value": 1}
    assert [[message.id for message in path] for path in one.branches()] == [
        ["e0", "e1", "e3", "e4"],
        ["e0", "e5", "e6"],
        ["e7", "e8"],
    ]
    assert [(edge.kind, edge.at, edge.to) for edge in one.edges] == [("rewrite", "e4", "e5"), ("rewrite", "e6", "e7")]


def test_going_back_to_before_a_condensation_sees_what_it_forgot(tmp_path: Path) -> None:
    forgets = {
        "kind": "Condensation",
        "source": "environment",
        "forgotten_event_ids": ["e1", "e2"],
        "summary": "Ropes.",
    }
    found = trace(
        tmp_path,
        USER,
        action("k1", "r1", parent_id="e0"),
        observed("k1") | {"parent_id": "e1"},
        forgets | {"parent_id": "e2"},
        action("k2", "r2", parent_id="e3"),
        action("k3", "r3", parent_id="e2"),
    )
    assert [[message.id for message in path] for path in found.branches()] == [
        ["e0", "e3", "e4"],
        ["e0", "e1", "e2", "e5"],
    ]
    assert [edge.kind for edge in found.edges] == ["compaction", "rewrite"]


def test_a_parent_that_is_no_event_is_refused_by_name(tmp_path: Path) -> None:
    found = reading(tmp_path, USER, action("k1", "r1", parent_id="gone"))
    assert list(found) == []
    assert [(bad.code, bad.where.rpartition(":")[2]) for bad in found.skipped] == [("TM110", "parent_id")]


METADATA = {
    "exit_code": 2,
    "pid": 7,
    "working_dir": "/srv",
    "py_interpreter_path": "/bin/python",
    "prefix": "<",
    "suffix": ">",
}


@pytest.mark.parametrize(
    ("observation", "parts"),
    [
        (
            {"metadata": METADATA},
            ["<ropes>\n[Current working directory: /srv]\n[Python interpreter: /bin/python]"
             "\n[Command finished with exit code 2]"],
        ),
        ({"metadata": {"exit_code": -1}}, ["ropes"]),
        ({"metadata": {"exit_code": 0}, "is_error": True},
         ["[An error occurred during execution.]\n", "ropes\n[Command finished with exit code 0]"]),
        ({"kind": "FileEditorObservation", "is_error": True}, ["[An error occurred during execution.]\n", "ropes"]),
        ({"kind": "TaskObservation", "task_id": "t", "subagent": "scout", "status": "done"},
         ["Task ID: t\nSubagent: scout\nStatus: done", "ropes"]),
    ],
)  # fmt: skip
def test_an_observation_says_what_its_tool_told_the_model(
    observation: dict[str, Any], parts: list[str], tmp_path: Path
) -> None:
    found = reading(tmp_path, USER, action("k1", "r1"), observed("k1", **observation))
    (one,) = found
    result = one.messages[-1].blocks[0]
    assert isinstance(result, ToolResult)
    assert [block.text for block in result.content if isinstance(block, Text)] == parts
    assert result.is_error is (observation.get("is_error") is True)
    assert dict(found.unknown_fields) == {}


def test_an_observation_that_the_model_saw_cut_is_noted(tmp_path: Path) -> None:
    long = [{"type": "text", "text": "x" * 30_001}]
    found = reading(tmp_path, USER, action("k1", "r1"), observed("k1", content=long, metadata={}))
    list(found)
    assert sum("saw cut" in note for note in found.notes) == 1


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ({"observation": "run", "extras": {"metadata": METADATA | {"py_interpreter_path": None}}, "cause": 1},
         "<ropes>\n[Current working directory: /srv]\n[Command finished with exit code 2]"),
        ({"observation": "run", "extras": {"metadata": {"exit_code": 0}}},
         "\nObserved result of command executed by user:\nropes\n[Command finished with exit code 0]"),
        ({"observation": "run", "extras": {"command_id": 3}}, "ropes"),
        ({"observation": "error"}, "ropes\n[Error occurred in processing last action]"),
        ({"observation": "user_rejected"}, "OBSERVATION:\nropes\n[Last action has been rejected by the user]"),
        ({"observation": "read", "extras": {"path": "/a"}}, "ropes"),
    ],
)  # fmt: skip
def test_an_observation_of_the_older_app_says_what_it_told_the_model(
    event: dict[str, Any], text: str, tmp_path: Path
) -> None:
    reply = {"role": "assistant", "content": "I look.", "tool_calls": [{"id": "k", "type": "function",
             "function": {"name": "execute_bash", "arguments": "{}"}}]}  # fmt: skip
    meta = {"tool_call_id": "k", "function_name": "execute_bash", "model_response": {"choices": [{"message": reply}]}}
    rows = [
        {"id": 0, "source": "user", "action": "message", "args": {"content": "Sail."}},
        {"id": 1, "source": "agent", "action": "run", "args": {"command": "ls"}, "tool_call_metadata": meta},
        {"id": 2, "source": "agent", "content": "ropes", **event},
    ]
    (tmp_path / "run.json").write_text(json.dumps(rows))
    (one,) = read_traces(tmp_path / "run.json", format="openhands", on_error="fail")
    block = one.messages[-1].blocks[0]
    assert (block.content[0] if isinstance(block, ToolResult) else block).text == text  # type: ignore[union-attr]
