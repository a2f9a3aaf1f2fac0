"""Codex and Claude Code sessions as their tools write them today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracemask.trace import Reading, read_traces
from tracemask.trace.model import Media, ToolCall, ToolResult


def reading(folder: Path, form: str, *lines: dict[str, Any]) -> Reading:
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return read_traces(folder / "log.jsonl", format=form)


# ---- Codex


def item(**payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": payload}


def said(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return item(type="message", role=role, content=[{"type": kind, "text": text}])


META = {"type": "session_meta", "payload": {"id": "s", "base_instructions": {"text": "You mend."}}}
WORLD = {"type": "world_state", "payload": {"files": []}}


def test_codex_lines_of_kinds_to_come_do_not_hide_a_session(tmp_path: Path) -> None:
    found = reading(tmp_path, "auto", META, WORLD, said("user", "Mend."), said("assistant", "Done."))
    (one,) = found
    assert found.format == "codex"
    assert [message.text() for message in one.messages] == ["You mend.", "Mend.", "Done."]
    assert found.notes["line type 'world_state' is not part of the context"] == 1


def test_codex_base_instructions_outlive_a_compaction_and_a_roll_back(tmp_path: Path) -> None:
    history = [said("user", "Summary: mended.")["payload"]]
    (one,) = reading(
        tmp_path,
        "codex",
        META,
        said("user", "Mend."),
        said("assistant", "Done."),
        {"type": "compacted", "payload": {"message": "Summary: mended.", "replacement_history": history}},
        said("assistant", "Next."),
        {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 9}},
        said("assistant", "Other."),
    )
    assert [[message.text() for message in path] for path in one.branches()[1:]] == [
        ["You mend.", "Summary: mended.", "Next."],
        ["You mend.", "Other."],
    ]


def test_codex_words_of_another_agent_are_seen_and_never_the_policys(tmp_path: Path) -> None:
    words = {"author": "/lead/scout", "recipient": "/lead", "content": "The horn is loud.", "trigger_turn": True}
    (one,) = reading(
        tmp_path, "codex", META, said("user", "Mend."), {"type": "inter_agent_communication", "payload": words}
    )
    assert (one.messages[-1].author, one.messages[-1].text()) == ("model", "The horn is loud.")


def of_kinds(text: str, *kinds: str) -> dict[str, Any]:
    beside = {"turn_id": "t", "create_time": 1.5, "content_item_kinds": list(kinds)}
    content = [{"type": "input_text", "text": text}]
    return item(type="message", role="user", content=content, internal_chat_message_metadata_passthrough=beside)


def test_codex_says_itself_which_words_in_the_user_slot_are_its_own(tmp_path: Path) -> None:
    found = reading(
        tmp_path,
        "codex",
        META,
        of_kinds("Mind the tide.", "hooks.additional_context"),
        of_kinds("# AGENTS.md instructions are wrong, mend them.", "user.text"),
        of_kinds("Look.", "user.text", "user.image"),
        of_kinds("<environment_context>", "unknown"),
    )
    (one,) = found
    assert [message.author for message in one.messages[1:]] == ["harness", "taskset", "user", "harness"]
    assert dict(found.unknown_fields) == {}


def test_codex_metadata_of_an_item_does_not_reach_its_blocks(tmp_path: Path) -> None:
    beside = {"internal_chat_message_metadata_passthrough": {"turn_id": "t", "cell_id": "c", "later": 1}}
    found = reading(
        tmp_path,
        "codex",
        item(type="function_call", call_id="c", name="search", arguments="{}", **beside),
        item(type="function_call_output", call_id="c", output="x", **beside),
    )
    (one,) = found
    call, result = one.messages[0].blocks[0], one.messages[1].blocks[0]
    assert (call.model_extra, result.model_extra) == ({}, {})
    assert sorted(found.unknown_fields.values()) == [1, 1]


def test_codex_a_message_between_agents_is_text_and_added_tools_are_the_harness_s(tmp_path: Path) -> None:
    parts = [{"type": "input_text", "text": "It rings."}, {"type": "encrypted_content", "encrypted_content": "gA"}]
    found = reading(
        tmp_path,
        "codex",
        META,
        item(type="additional_tools", role="developer", tools=[{"type": "function", "name": "ring"}]),
        item(type="agent_message", id="amsg_1", author="/lead/scout", recipient="/lead", content=parts),
    )
    (one,) = found
    tools, words = one.messages[1:]
    assert (tools.role, tools.author) == ("developer", "harness")
    assert (words.role, words.author, words.text()) == ("user", "model", "It rings.")
    assert dict(found.unknown_fields) == {}


def test_codex_sessions_are_named_by_their_session_id_too(tmp_path: Path) -> None:
    meta = {"type": "session_meta", "payload": {"session_id": "s2"}}
    assert [trace.id for trace in reading(tmp_path, "codex", meta, said("user", "Mend."))] == ["s2"]


def test_codex_refusals_images_and_hosted_results_do_not_vanish(tmp_path: Path) -> None:
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    (one,) = reading(
        tmp_path,
        "codex",
        item(type="message", role="user", content=[image]),
        item(type="message", role="assistant", content=[{"type": "refusal", "refusal": "I must not."}]),
        item(type="image_generation_call", id="ig", status="completed", revised_prompt="a horn", result="AA=="),
        item(type="function_call", call_id="c", name="search", namespace="mcp__web__", arguments="{}"),
        item(type="function_call_output", call_id="c", output=[image]),
    )
    media = one.messages[0].blocks[0]
    assert isinstance(media, Media)
    assert media.part == image
    assert one.messages[1].text() == "I must not."
    drawn, search = (block for block in one.messages[1].blocks if isinstance(block, ToolCall))
    assert drawn.model_extra == {"revised_prompt": "a horn", "result": "AA=="}
    assert search.model_extra == {"namespace": "mcp__web__"}
    result = one.messages[2].blocks[0]
    assert isinstance(result, ToolResult)
    assert isinstance(result.content[0], Media)


def test_codex_events_that_say_something_new_are_noted(tmp_path: Path) -> None:
    event = {"type": "event_msg", "payload": {"type": "weather_changed"}}
    known = {"type": "event_msg", "payload": {"type": "agent_message", "message": "again"}}
    found = reading(tmp_path, "codex", META, said("user", "Mend."), event, known)
    list(found)
    assert dict(found.notes) == {"event 'weather_changed' is not part of the context": 1}


# ---- Claude Code


def line(uuid: str, parent: str | None, role: str, content: Any, **more: Any) -> dict[str, Any]:
    message = {"role": role, "content": content}
    if role == "assistant":
        message |= {"id": f"msg_{uuid}", "model": "policy-1", "stop_reason": "end_turn"}
    head = {
        "parentUuid": parent,
        "isSidechain": False,
        "type": role,
        "uuid": uuid,
        "sessionId": "s",
        "message": message,
    }
    return head | more


def test_claude_code_images_are_kept_whole(tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    (one,) = reading(
        tmp_path,
        "claude-code",
        line("u1", None, "user", [{"type": "text", "text": "See"}, image]),
        line("a1", "u1", "assistant", [{"type": "tool_use", "id": "t", "name": "Look", "input": {}}]),
        line("u2", "a1", "user", [result]),
    )
    seen, looked = one.messages[0].blocks[1], one.messages[2].blocks[0]
    assert isinstance(seen, Media)
    assert isinstance(looked, ToolResult)
    assert (seen.part, seen.mime) == (image, "image/png")
    assert isinstance(looked.content[0], Media)


def test_claude_code_what_nobody_typed_is_the_harnesss(tmp_path: Path) -> None:
    (one,) = reading(
        tmp_path,
        "claude-code",
        line("u1", None, "user", "Fix it.", origin={"kind": "human"}),
        line("a1", "u1", "assistant", [{"type": "text", "text": "Fixed."}]),
        line("u2", "a1", "user", "<task-notification>…", origin={"kind": "task-notification"}),
        line("a2", "u2", "assistant", [{"type": "text", "text": "Seen."}]),
        line("u3", "a2", "user", "Thanks.", origin={"kind": "human"}),
    )
    assert [message.author for message in one.messages if message.role == "user"] == ["taskset", "harness", "user"]


def test_claude_code_turns_say_who_began_them(tmp_path: Path) -> None:
    found = reading(
        tmp_path,
        "claude-code",
        line("u1", None, "user", "Fix it.", turnOrigin="human", turnPosition={"turnIndex": 0}),
        line("a1", "u1", "assistant", [{"type": "text", "text": "Fixed."}]),
        line("u2", "a1", "user", "Look again.", turnOrigin="scheduled", scheduledTaskId="7"),
        line("u3", "u2", "user", "Thanks.", turnOrigin="human"),
    )
    (one,) = found
    assert [message.author for message in one.messages if message.role == "user"] == ["taskset", "harness", "user"]
    assert dict(found.unknown_fields) == {}


def test_claude_code_attachments_and_kept_messages_are_noted(tmp_path: Path) -> None:
    kept = {"trigger": "auto", "preservedSegment": {"headUuid": "u1"}}
    found = reading(
        tmp_path,
        "claude-code",
        line("u1", None, "user", "Fix it."),
        {"parentUuid": "u1", "type": "attachment", "uuid": "t1", "attachment": {"type": "todo_reminder"}},
        line("a1", "t1", "assistant", [{"type": "text", "text": "Fixed."}]),
        {"parentUuid": None, "type": "system", "subtype": "compact_boundary", "uuid": "c", "compactMetadata": kept},
        line("u2", "c", "user", "Summary.", isCompactSummary=True),
    )
    list(found)
    assert "attachment 'todo_reminder': the words that the model saw of it are not in the log" in found.notes
    assert "a compaction kept messages that the context after it does not repeat" in found.notes


def test_claude_code_what_a_compaction_kept_stands_after_its_summary(tmp_path: Path) -> None:
    call = [{"type": "tool_use", "id": "t1", "name": "Read", "input": {}}]
    result = [{"type": "tool_result", "tool_use_id": "t1", "content": "ropes"}]
    said = line("a0", "u1", "assistant", [{"type": "text", "text": "I read."}])
    said["message"]["id"] = "msg_a1"  # a line of the same reply
    kept = {"trigger": "auto", "preservedMessages": {"anchorUuid": "u4", "uuids": ["a1", "u2", "gone"]}}
    found = reading(
        tmp_path,
        "claude-code",
        line("u1", None, "user", "Fix it."),
        said,
        line("a1", "a0", "assistant", call),
        line("u2", "a1", "user", result),
        {"parentUuid": None, "logicalParentUuid": "u2", "type": "system", "subtype": "compact_boundary", "uuid": "c",
         "compactMetadata": kept},
        line("u4", "c", "user", "Summary.", isCompactSummary=True),
        line("a2", "u4", "assistant", [{"type": "text", "text": "Next."}]),
    )  # fmt: skip
    (one,) = found
    before, after = one.branches()
    assert [message.role for message in before] == ["user", "assistant", "tool"]
    assert [(message.role, message.copied) for message in after] == [
        ("user", False),
        ("assistant", True),
        ("tool", True),
        ("assistant", False),
    ]
    assert [message.id for message in one.messages if message.from_policy and not message.copied] == ["a0", "a2"]
    assert found.notes["a message that a compaction kept is not in this file"] == 1


def test_claude_code_kept_messages_that_the_file_links_after_the_summary_are_not_doubled(tmp_path: Path) -> None:
    kept = {"preservedSegment": {"headUuid": "a1"}, "preservedMessages": {"uuids": ["a1"]}}
    (one,) = reading(
        tmp_path,
        "claude-code",
        {"parentUuid": None, "type": "system", "subtype": "compact_boundary", "uuid": "c", "compactMetadata": kept},
        line("u1", "c", "user", "Summary.", isCompactSummary=True),
        line("a1", "u1", "assistant", [{"type": "text", "text": "Fixed."}]),
        line("u2", "a1", "user", "Thanks."),
    )
    assert [message.text() for message in one.messages] == ["Summary.", "Fixed.", "Thanks."]


def test_claude_code_a_ring_of_parents_is_refused(tmp_path: Path) -> None:
    found = reading(
        tmp_path,
        "claude-code",
        line("u1", "a1", "user", "Fix it."),
        line("a1", "u1", "assistant", [{"type": "text", "text": "Fixed."}]),
    )
    assert list(found) == []
    assert [(error.code, error.where) for error in found.skipped] == [("TM110", "log.jsonl:2:parentUuid")]


def test_claude_code_lines_in_any_order_make_the_same_tree(tmp_path: Path) -> None:
    lines = [line("u0", None, "user", "Count.")]
    for number in range(1500):
        reply = [{"type": "tool_use", "id": f"t{number}", "name": "Next", "input": {"at": number}}]
        lines.append(line(f"a{number}", f"u{number}", "assistant", reply))
        result = [{"type": "tool_result", "tool_use_id": f"t{number}", "content": str(number)}]
        lines.append(line(f"u{number + 1}", f"a{number}", "user", result))
    (forth,) = reading(tmp_path, "claude-code", *lines)
    back = reading(tmp_path, "claude-code", *reversed(lines))
    (other,) = back
    assert back.skipped == []
    assert [m.id for m in other.branches()[0]] == [m.id for m in forth.branches()[0]]


@pytest.mark.parametrize("reason", ["max_tokens", "model_context_window_exceeded"])
def test_claude_code_a_reply_cut_short_truncates_the_session(reason: str, tmp_path: Path) -> None:
    reply = line("a1", "u1", "assistant", [{"type": "text", "text": "Fix"}])
    reply["message"]["stop_reason"] = reason
    (one,) = reading(tmp_path, "claude-code", line("u1", None, "user", "Fix it."), reply)
    assert one.truncated is True
