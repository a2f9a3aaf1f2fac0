"""What each format's fixture must come out as: contexts exact, authors right, only the policy trained."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_fixtures import GOOD, ROOT, inspect_archive

from tracemask.core.vocab import Fidelity
from tracemask.trace import Trace, read_traces
from tracemask.trace.model import Reasoning, ToolCall, ToolResult


def read(name: str) -> list[Trace]:
    return list(read_traces(ROOT / name, on_error="fail"))


def paths(trace: Trace) -> list[list[str]]:
    return [[said(message) for message in path] for path in trace.branches()]


def said(message: object) -> str:
    return message.text() or "→".join(block.name for block in message.blocks if isinstance(block, ToolCall))  # type: ignore[attr-defined]


def trained(trace: Trace) -> list[str]:
    return [said(message) for message in trace.messages if message.from_policy]


@pytest.mark.parametrize("name", list(GOOD))
def test_no_summary_copy_simulator_or_other_model_is_the_policys(name: str) -> None:
    foreign = (
        "Summary",
        "summary",
        "###STOP###",
        "Hi! How can I help",
        "Under the stairs",
        "Asked.",
        "dispatch",
        "Checked by",
        "Another model began",
        "Asking a helper",
        "Two calls at once",
        "API Error",
    )
    for trace in read(name):
        own = [text for text in trained(trace) if trace.id not in ("lone", "main/sum-1")]
        assert not [text for text in own if text.startswith(foreign)]


def test_openai_ids_and_log_probs_are_read_under_the_engines_names() -> None:
    first = read("openai/chat.jsonl")[0]
    call, answer = (message.sampled for message in first.messages if message.from_policy)
    assert call is not None
    assert answer is not None
    assert (call.token_ids, call.logprobs, call.prompt_ids) == ([21, 22, 23], [-0.5, -0.25, -1.5], [11, 12, 13])
    assert answer.logprobs == [-0.125, None]
    assert first.fidelity is Fidelity.EXACT


def test_openai_replies_inside_a_prompt_are_copied_context() -> None:
    trace = read("openai/chat.jsonl")[4]
    assert trained(trace) == ["Nine metres."]
    assert (trace.reward, trace.rewards["right"].weight) == (0.5, 0.5)


def test_verifiers_nodes_become_a_tree_whose_shared_reply_is_one_message() -> None:
    solver = read("verifiers/traces.jsonl")[0]
    assert paths(solver) == [
        ["Read the table.", "How high at six?", "tide", "2.1 m", "2.1 m."],
        ["Read the table.", "How high at six?", "tide", "error", "It failed."],
    ]
    shared = solver.messages[2].sampled
    assert shared is not None
    assert (shared.prompt_ids, shared.token_ids, shared.advantage) == ([1, 2, 3, 4, 5], [6, 7], 1.5)


def test_verifiers_arrays_over_all_tokens_or_over_sampled_ones_give_the_same() -> None:
    branch = read("verifiers/traces.jsonl")[0].messages[6].sampled
    assert branch is not None
    assert branch.token_ids == [13, 40, 14]
    assert branch.logprobs == [-1.0, None, -2.0]
    assert [(span.start, span.end, span.author) for span in branch.spans] == [(1, 2, "environment")]
    assert branch.prompt_ids == [1, 2, 3, 4, 5, 6, 7, 12, 9]


def test_verifiers_absent_advantage_is_not_zero() -> None:
    first, second = (trace.messages for trace in read("verifiers/traces.jsonl")[::2])
    assert first[4].sampled is not None
    assert first[4].sampled.advantage is None
    assert second[1].sampled is not None
    assert second[1].sampled.advantage is None
    legacy = read("verifiers/legacy.jsonl")[0].messages
    assert [message.sampled.advantage for message in legacy if message.sampled] == [None, 0.0, None]


def test_verifiers_the_task_and_the_environment_stay_with_each_trace() -> None:
    for trace in read("verifiers/traces.jsonl")[:2]:
        assert trace.extra["task"]["data"] == {"question": "How high?"}
        assert trace.extra["env"] == {"id": "tides"}


def test_verifiers_an_untrainable_agent_is_another_trace_of_the_same_group() -> None:
    solver, critic, _ = read("verifiers/traces.jsonl")
    assert (solver.group_id, critic.group_id) == ("g7", "g7")
    assert (solver.trainable, critic.trainable) == (True, False)
    assert solver.reward == pytest.approx(1.1)
    assert critic.reward is None


def test_verifiers_legacy_steps_share_prefixes_and_fork_where_history_was_rewritten() -> None:
    trace = read("verifiers/legacy.jsonl")[0]
    assert paths(trace) == [["How high?", "2 m", "Sure?", "Yes"], ["Forgotten. How low?", "1 m"]]
    assert [(edge.kind, edge.to) for edge in trace.edges] == [("rewrite", trace.messages[4].id)]
    assert trace.truncated is None


def test_atif_a_boundary_replaces_the_context_and_keeps_the_system_prompt() -> None:
    (main, summarizer) = read("atif/trial")
    assert paths(main) == [
        [
            "You keep the light.",
            "Report the fog.",
            "fog→wind",
            "none",
            "calm",
            "Two calls at once.",
            "Terminal: ok",
            "dispatch",
        ],
        ["You keep the light.", "Summary so far: no fog. Continue.", "Done.", "Checked by another."],
    ]
    assert trained(main) == ["fog→wind", "Done."]
    assert [edge.kind for edge in main.edges] == ["compaction", "subagent"]
    assert trained(summarizer) == ["Summary so far: no fog."]
    assert main.messages[9].author == "model"


def test_atif_the_reward_of_the_trial_beside_it_is_zero_not_missing() -> None:
    main = read("atif/trial")[0]
    assert main.reward == 0.0
    assert main.task_id == "fog-report"
    assert read("atif/old.json")[0].reward is None


def test_atif_a_step_that_sums_up_several_calls_is_context_and_says_so() -> None:
    reading = read_traces(ROOT / "atif/trial")
    main = next(iter(reading))
    assert main.messages[5].sampled is None
    assert [finding.cause for finding in reading.findings] == ["aggregated_step"]


def test_claude_code_lines_of_one_reply_are_one_message_and_results_follow_the_calls() -> None:
    trace = read("claude-code/session.jsonl")[0]
    main = trace.branches()[-1]
    assert [said(message) for message in main][:6] == [
        "Fix the lamp.",
        "Read→Read",
        "first",
        "second",
        "<system-reminder>Be brief.</system-reminder>",
        "Task",
    ]
    assert [block.call_id for message in main for block in message.blocks if isinstance(block, ToolResult)] == [
        "t1",
        "t2",
        "t3",
    ]


def test_claude_code_compaction_side_chain_and_rewind_are_branches_with_reasons() -> None:
    trace = read("claude-code/session.jsonl")[0]
    ends = [path[-1].text() for path in trace.branches()]
    assert ends == ["Under the stairs.", "Changed.", "Left as it is."]
    kinds = {edge.kind: edge for edge in trace.edges}
    assert set(kinds) == {"compaction", "subagent"}
    assert kinds["subagent"].at == "a4"
    assert (kinds["compaction"].at, kinds["compaction"].to, kinds["compaction"].trigger) == ("a5", "u5", "auto")
    assert trace.errors == ["API Error: 529"]


def test_claude_code_signed_and_redacted_thinking_is_kept_as_such() -> None:
    trace = read("claude-code/session.jsonl")[0]
    thoughts = [block for message in trace.messages for block in message.blocks if isinstance(block, Reasoning)]
    assert [(b.text, b.signature, b.encrypted, b.redacted) for b in thoughts] == [
        ("Read it first.", "sig==", None, False),
        (None, None, "opaque", True),
    ]


def test_reasoning_that_cannot_be_read_is_noted() -> None:
    reading = read_traces(ROOT / "claude-code/session.jsonl")
    list(reading)
    assert reading.notes["reasoning that cannot be read (redacted or encrypted): no template gets it"] == 1


def test_claude_code_another_models_side_chain_is_not_trained() -> None:
    trace = read("claude-code/session.jsonl")[0]
    assert trace.messages[7].author == "model"
    assert trace.messages[7].extra["log"]["model"] == "small-1"
    assert "Under the stairs." not in trained(trace)


def test_codex_replacement_history_replaces_the_whole_context() -> None:
    trace = read("codex/rollout.jsonl")[0]
    assert [path[-1].text() for path in trace.branches()] == ["Patched.", "It sounds.", "Painting"]
    after = trace.branches()[1]
    assert [(message.author, message.copied) for message in after[:4]] == [
        ("harness", True),  # the base instructions go with every request and stand in no history
        ("harness", True),
        ("taskset", True),
        ("model", True),
    ]
    assert [edge.kind for edge in trace.edges] == ["compaction", "rewrite"]
    assert trained(trace) == ["shell→apply_patch", "Patched.", "It sounds.", "Painting"]


def test_codex_items_of_one_call_are_one_reply_with_encrypted_reasoning_and_free_form_input() -> None:
    reply = read("codex/rollout.jsonl")[0].messages[4]
    thought, shell, patch = reply.blocks
    assert isinstance(thought, Reasoning)
    assert isinstance(shell, ToolCall)
    assert isinstance(patch, ToolCall)
    assert (thought.text, thought.encrypted) == ("Look at it.", "gAAA")
    assert shell.raw_arguments == '{"cmd":["ls"]}'
    assert (patch.raw_arguments, patch.arguments) == ("*** Begin Patch\n*** End Patch", None)


def test_codex_an_aborted_turn_truncates_the_trace() -> None:
    trace = read("codex/rollout.jsonl")[0]
    assert trace.truncated is True
    assert trace.messages[-1].cut_short


def test_codex_history_copied_from_the_parent_thread_is_not_trained_again() -> None:
    assert trained(read("codex/child.jsonl")[0]) == ["In the box."]


def test_swe_agent_queries_show_the_elision_that_the_history_hides() -> None:
    trace = read("swe-agent/bell.traj")[0]
    plain, elided = trace.branches()
    assert [said(message) for message in plain][-3:] == ["bell.py", "/srv", "I edit."]
    assert [said(message) for message in elided][-5:] == [
        "Old environment output: (1 lines omitted)",
        "/srv",
        "I edit.",
        "done",
        "Submitted.",
    ]
    assert trained(trace) == ["I look.", "I edit.", "Submitted."]
    assert [edge.kind for edge in trace.edges] == ["rewrite"]


def test_swe_agent_parallel_calls_flattened_into_one_action_stay_two_calls() -> None:
    reply = read("swe-agent/bell.traj")[0].messages[4]
    assert [block.name for block in reply.blocks if isinstance(block, ToolCall)] == ["bash", "bash"]


def test_swe_agent_demonstrations_are_another_models_and_the_issue_is_the_task() -> None:
    authors = [message.author for message in read("swe-agent/bell.traj")[0].messages[:4]]
    assert authors == ["harness", "harness", "model", "taskset"]


def test_mini_swe_agent_exit_is_no_message_and_observations_are_the_environments() -> None:
    trace = read("swe-agent/gull.traj.json")[0]
    assert [message.role for message in trace.messages] == ["system", "user", "assistant", "user", "assistant", "tool"]
    assert trace.messages[3].author == "environment"
    assert trace.stop == "Submitted"


def test_slime_text_that_the_environment_wrote_inside_a_reply_is_a_span() -> None:
    sampled = read("slime/samples.jsonl")[0].messages[1].sampled
    assert sampled is not None
    assert (sampled.prompt_ids, sampled.token_ids) == ([1, 2, 3], [10, 11, 50, 51, 12])
    assert [(span.start, span.end, span.author) for span in sampled.spans] == [(2, 4, "environment")]
    assert sampled.logprobs == [-0.5, -0.5, None, None, -1.0]


def test_verl_padding_is_cut_on_both_sides() -> None:
    sampled = read("verl/ids.jsonl")[0].messages[1].sampled
    assert sampled is not None
    assert (sampled.prompt_ids, sampled.token_ids, sampled.logprobs) == ([7, 8], [9, 10, 11], [-0.5, None, -0.25])
    assert read("verl/ids.jsonl")[0].reward == 1.0
    assert read("verl/text.jsonl")[0].fidelity is Fidelity.MESSAGES


def test_skyrl_a_batch_is_one_trace_a_rollout_with_its_group() -> None:
    first, second = read("skyrl/batch.jsonl")
    assert (first.group_id, first.attempt, first.reward) == ("k", 0, 1.0)
    assert (second.group_id, second.attempt, second.truncated) == ("k", 1, True)


def test_the_same_dump_as_parquet_is_the_same_trace(tmp_path: Path) -> None:
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    for name in ("slime/samples.jsonl", "verl/ids.jsonl", "verl/text.jsonl", "skyrl/batch.jsonl"):
        rows = [json.loads(line) for line in (ROOT / name).read_text().splitlines()]
        rows = rows[:1]  # one schema a file
        path = tmp_path / f"{Path(name).stem}.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
        plain, table = read(name)[0], next(iter(read_traces(path)))
        assert (plain.messages, plain.reward, plain.group_id) == (table.messages, table.reward, table.group_id)


@pytest.mark.parametrize("compression", [0, 8])
def test_inspect_contexts_come_from_model_events_with_attachments_resolved(tmp_path: Path, compression: int) -> None:
    one, two = read_traces(inspect_archive(tmp_path, compression=compression), on_error="fail")
    assert paths(one) == [
        ["Read the table.", "How high at six?", "tide"],
        ["Read the table.", "Summary: 2.1 m at six.", "2.1 m"],
    ]
    assert [edge.kind for edge in one.edges] == ["compaction"]
    assert (one.reward, one.rewards["match"].score) == (1.0, 1.0)
    assert (two.reward, {name: part.score for name, part in two.rewards.items()}) == (
        None,
        {"a": 1.0, "b.x": 0.5, "b.y": 0.0},
    )
    assert two.truncated is True


def test_inspect_members_compressed_with_zstd_are_read(tmp_path: Path) -> None:
    import zipfile

    import pyarrow as pa

    plain = inspect_archive(tmp_path)
    packed = tmp_path / "zstd.eval"
    with zipfile.ZipFile(plain) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as out:
        for name in source.namelist():
            out.writestr(name, bytes(pa.Codec("zstd").compress(source.read(name), asbytes=True)))
    raw = bytearray(
        packed.read_bytes()
    )  # zipfile cannot write method 93: the two places that name the method are set by hand
    with zipfile.ZipFile(packed) as out:
        sizes = {info.filename: info for info in out.infolist()}
    for info in sizes.values():
        raw[info.header_offset + 8 : info.header_offset + 10] = (93).to_bytes(2, "little")
    at = raw.find(b"PK\x01\x02")
    while at >= 0:
        raw[at + 10 : at + 12] = (93).to_bytes(2, "little")
        at = raw.find(b"PK\x01\x02", at + 4)
    packed.write_bytes(raw)
    assert [trace.messages for trace in read_traces(packed)] == [trace.messages for trace in read_traces(plain)]


@pytest.mark.parametrize("name", ["openhands/run", "openhands/legacy.json"])
def test_openhands_a_condensation_rebuilds_the_context_below_what_it_kept(name: str) -> None:
    trace = read(name)[0]
    before, after = trace.branches()
    assert [message.id for message in before[:2]] == [message.id for message in after[:2]]
    assert [message.author for message in after] == ["harness", "taskset", "model", "policy"]
    assert after[-1].text() == "Stowed."
    assert [edge.kind for edge in trace.edges] == ["compaction"]


def test_openhands_actions_of_one_response_are_one_reply_with_parallel_calls() -> None:
    reply = read("openhands/run")[0].messages[2]
    assert [block.id for block in reply.blocks if isinstance(block, ToolCall)] == ["k1", "k2"]


def test_tau2_the_user_simulator_is_another_model_and_its_tools_are_not_in_the_context() -> None:
    reading = read_traces(ROOT / "tau2/results.json")
    (trace,) = reading
    assert [message.author for message in trace.messages] == [
        "harness",
        "model",
        "policy",
        "environment",
        "environment",
        "policy",
        "model",
    ]
    assert "app ok" not in str(trace)
    assert reading.notes["tool use of the user simulator is not in the agent's context"] == 2
    assert (trace.reward, trace.attempt, trace.stop) == (1.0, 1, "user_stop")
