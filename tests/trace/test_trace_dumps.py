"""Trainers' dumps, verifiers results and mini-swe-agent trajectories in the shapes their tools write today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracemask.core.errors import TracemaskError
from tracemask.core.vocab import Fidelity
from tracemask.trace import Reading, Trace, read_traces
from tracemask.trace.model import Media


def reading(folder: Path, form: str, *rows: dict[str, Any]) -> Reading:
    (folder / "log.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    return read_traces(folder / "log.jsonl", format=form)


def one(folder: Path, form: str, row: dict[str, Any]) -> Trace:
    found = reading(folder, form, row)
    (trace,) = found
    assert found.skipped == []
    return trace


def refused(folder: Path, form: str, row: dict[str, Any]) -> list[TracemaskError]:
    found = reading(folder, form, row)
    assert list(found) == []
    return found.skipped


SLIME = {
    "index": 3,
    "group_index": 1,
    "prompt": "q",
    "tokens": [1, 2, 3],
    "response": "a",
    "response_length": 2,
    "status": "completed",
    "rollout_log_probs": [-0.5, -0.25],
}


def test_slime_teachers_log_probs_are_columns(tmp_path: Path) -> None:
    row = SLIME | {"teacher_log_probs": [-1.0, -2.0], "mopd_teacher_log_probs": {"maths": [-3.0, -4.0]}}
    sampled = one(tmp_path, "slime", row).messages[-1].sampled
    assert sampled is not None
    assert sampled.columns == {"ref_logprob": [-1.0, -2.0], "teacher.maths": [-3.0, -4.0]}


def test_slime_several_weight_versions_and_words_in_a_reward_are_kept(tmp_path: Path) -> None:
    trace = one(tmp_path, "slime", SLIME | {"weight_versions": ["1", "2"], "reward": {"score": 0.5, "pred": "42"}})
    assert trace.messages[-1].sampled is not None
    assert trace.messages[-1].sampled.policy_version is None
    assert trace.extra["weight_versions"] == ["1", "2"]
    assert (trace.reward, trace.extra["reward"]) == (0.5, {"pred": "42"})
    assert one(tmp_path, "slime", SLIME | {"weight_versions": ["2", "2"]}).messages[-1].sampled.policy_version == "2"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("row", "code", "where"),
    [
        ({"response_length": -1}, "TM101", "response_length"),
        ({"loss_mask": [1, 2]}, "TM911", "loss_mask[1]"),
        ({"loss_mask": ["1", 0]}, "TM911", "loss_mask[0]"),
        ({"teacher_log_probs": [-1.0]}, "TM101", "teacher_log_probs"),
        ({"tokens": [1, 2**31, 3]}, "TM911", "tokens"),
        ({"tokens": [1, -2, 3]}, "TM911", "tokens"),
        ({"tokens": [1, 2.0, 3]}, "TM911", "tokens"),
        ({"tokens": ["1", 2, 3]}, "TM911", "tokens"),
    ],
)
def test_slime_numbers_that_do_not_fit_are_refused_by_name(
    row: dict[str, Any], code: str, where: str, tmp_path: Path
) -> None:
    found = reading(tmp_path, "slime", SLIME | row, SLIME)
    assert len(list(found)) == 1
    assert [(error.code, error.where) for error in found.skipped] == [(code, f"log.jsonl:1:{where}")]


VERL = {"prompts": [0, 7], "responses": [9, 10, 0], "attention_mask": [0, 1, 1, 1, 0], "response_mask": [1, 1, 0]}


def test_verl_the_trainers_own_log_probs_are_never_the_engines(tmp_path: Path) -> None:
    row = VERL | {"old_log_probs": [-0.5, -0.25, 0.0], "ref_log_prob": [-1.0, -2.0, 0.0], "advantages": [0.5, 0.5, 0.0]}
    sampled = one(tmp_path, "verl", row).messages[-1].sampled
    assert sampled is not None
    assert (sampled.logprobs, sampled.advantage) == (None, 0.5)
    assert sampled.columns == {"old_logprob": [-0.5, -0.25], "ref_logprob": [-1.0, -2.0]}


def test_skyrl_a_bad_rollout_costs_its_batch_nothing(tmp_path: Path) -> None:
    row = {
        "prompt_token_ids": [[1], [1], [1]],
        "response_ids": [[2], [3, 4], [5]],
        "loss_masks": [[1], [1], [1]],
        "rewards": [1.0, 0.0, 0.5],
        "trajectory_ids": ["maths_0", "maths_1", "maths_2"],
        "unshaped_rewards": [1, 2, 3],
    }
    found = reading(tmp_path, "skyrl", row)
    traces = list(found)
    assert [(trace.task_id, trace.attempt, trace.reward) for trace in traces] == [("maths", 0, 1.0), ("maths", 2, 0.5)]
    assert [trace.extra["unshaped_rewards"] for trace in traces] == [1, 3]
    assert [(error.code, error.where) for error in found.skipped] == [("TM101", "log.jsonl:1:loss_masks[1]")]


def test_rows_of_prompt_and_completion_texts_are_recognised(tmp_path: Path) -> None:
    row = {"step": 1, "prompt": "q", "completion": "a", "accuracy_reward": 1.0, "advantage": 0.5}
    found = reading(tmp_path, "auto", row)
    (trace,) = found
    assert (found.format, trace.advantage) == ("openai", 0.5)
    assert any("not rendered again" in note for note in found.notes)


NODES = [
    {"parent": None, "message": {"role": "user", "content": "q"}, "token_ids": [1], "mask": [False]},
    {
        "parent": 0,
        "message": {"role": "assistant", "content": "a"},
        "token_ids": [2, 3],
        "mask": [False, True],
        "sampled": True,
    },
]


def test_verifiers_errors_of_an_episode_are_its_traces(tmp_path: Path) -> None:
    row = {
        "id": "e",
        "task": {},
        "errors": [{"type": "Timeout", "message": "slow"}],
        "traces": [{"id": "t", "nodes": NODES}],
    }
    assert one(tmp_path, "verifiers", row).errors == ["Timeout: slow"]


def test_verifiers_a_nodes_own_finish_reason_truncates(tmp_path: Path) -> None:
    trace = one(tmp_path, "verifiers", {"id": "t", "nodes": [NODES[0], NODES[1] | {"finish_reason": "length"}]})
    assert trace.truncated is True
    assert trace.messages[1].cut_short


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize(
    ("change", "code", "place"),
    [
        ({"token_ids": None}, "TM101", "mask"),
        ({"token_ids": []}, "TM101", "mask"),
        ({"mask": [True] * 5}, "TM101", "mask"),
        ({"mask": [{}, "no"]}, "TM911", "mask"),
        ({"mask": {"0": True}}, "TM911", "mask"),
    ],
)
def test_verifiers_a_mask_that_does_not_fit_its_ids_is_refused_at_every_node(
    tmp_path: Path, node: int, change: dict[str, Any], code: str, place: str
) -> None:
    """A node that lost its ids is no text-only reply, nor a context that nobody knows."""
    nodes = [NODES[0] | {"token_ids": [1, 5], "mask": [False, False]}, NODES[1]]
    nodes[node] = nodes[node] | change
    (error,) = refused(tmp_path, "verifiers", {"id": "t", "nodes": nodes})
    assert error.code == code and f"nodes[{node}].{place}" in error.where


def test_verifiers_a_legacy_mask_holds_flags_only(tmp_path: Path) -> None:
    tokens = {"prompt_ids": [1], "completion_ids": [2, 3], "completion_mask": [1, "0"]}
    step = {"prompt": "q", "completion": "a", "tokens": tokens}
    (error,) = refused(tmp_path, "verifiers", {"example_id": 1, "trajectory": [step]})
    assert error.code == "TM911" and "completion_mask[1]" in error.where


def test_verifiers_a_column_with_holes_is_kept_and_not_filled(tmp_path: Path) -> None:
    reply = NODES[1] | {"token_ids": [2, 3, 4], "mask": [False, True, True], "entropies": [0.5, None]}
    message = one(tmp_path, "verifiers", {"id": "t", "nodes": [NODES[0], reply]}).messages[1]
    assert message.sampled is not None
    assert message.sampled.columns == {}
    assert message.extra["log"]["entropies"] == [0.5, None]


def test_verifiers_a_legacy_step_that_was_cut_says_so(tmp_path: Path) -> None:
    step = {
        "prompt": [{"role": "user", "content": "q"}],
        "completion": [{"role": "assistant", "content": "a"}],
        "tokens": {"prompt_ids": [1], "completion_ids": [2], "completion_mask": [1], "completion_logprobs": [-1.0]},
        "is_truncated": True,
    }
    tools = [{"name": "f", "description": "", "parameters": {}}]
    trace = one(tmp_path, "verifiers", {"example_id": 1, "trajectory": [step], "tool_defs": tools})
    assert trace.messages[1].cut_short
    assert trace.tools == [{"type": "function", "function": tools[0]}]


def test_mini_swe_agent_replies_have_the_ids_of_their_response(tmp_path: Path) -> None:
    choice = {
        "finish_reason": "stop",
        "message": {"role": "assistant", "content": "I look."},
        "token_ids": [7, 8],
        "logprobs": {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -0.25}]},
    }
    response = {
        "id": "r",
        "model": "policy",
        "choices": [choice],
        "prompt_token_ids": [1, 2],
        "usage": {"total_tokens": 4},
    }
    row = {
        "trajectory_format": "mini-swe-agent-1.1",
        "info": {"exit_status": "Submitted"},
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "task"},
            {"role": "user", "content": "Format error."},
            {"role": "assistant", "content": "I look.", "extra": {"response": response, "cost": 0.1}},
            {"role": "user", "content": "out"},
            {"role": "exit", "content": "Submitted"},
        ],
    }
    found = reading(tmp_path, "swe-agent", row)
    (trace,) = found
    assert trace.fidelity is Fidelity.EXACT
    sampled = trace.messages[3].sampled
    assert sampled is not None
    assert (sampled.prompt_ids, sampled.token_ids, sampled.logprobs) == ([1, 2], [7, 8], [-0.5, -0.25])
    authors = [message.author for message in trace.messages]
    assert authors == ["harness", "taskset", "harness", "policy", "environment"]
    assert found.notes["the harness's own note of the end is not part of the context"] == 1


def test_atif_metrics_without_ids_and_media_are_kept(tmp_path: Path) -> None:
    image = {"type": "image", "source": {"media_type": "image/png", "path": "images/1.png"}}
    row = {
        "schema_version": "ATIF-v1.6",
        "agent": {"name": "a", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "See"}, image]},
            {"step_id": 2, "source": "agent", "message": "Seen.", "metrics": {"prompt_tokens": 9, "logprobs": [-0.5]}},
        ],
    }
    trace = one(tmp_path, "atif", row)
    media = trace.messages[0].blocks[1]
    assert isinstance(media, Media)
    assert (media.uri, media.mime, media.part) == ("images/1.png", "image/png", image)
    assert trace.messages[1].extra["log"]["metrics"] == {"prompt_tokens": 9, "logprobs": [-0.5]}


def test_tau2_a_bad_simulation_costs_the_others_nothing_and_sound_is_no_text(tmp_path: Path) -> None:
    sound = {"role": "user", "content": "UklGRg==", "is_audio": True, "audio_path": "1.wav"}
    good = {"id": "g", "task_id": "t", "messages": [{"role": "assistant", "content": "Hi"}, sound]}
    (tmp_path / "results.json").write_text(json.dumps({"info": {}, "tasks": [], "simulations": [{"id": "b"}, good]}))
    found = read_traces(tmp_path / "results.json")
    (trace,) = found
    assert isinstance(trace.messages[1].blocks[0], Media)
    assert trace.messages[1].text() == ""
    assert [error.where for error in found.skipped] == ["results.json:1:simulations[0].messages"]


VERL_TEXT = {"input": "q", "output": "a", "gts": "a", "score": 1.0, "step": 3}


def test_verl_later_dumps_name_group_session_and_output_in_one_word(tmp_path: Path) -> None:
    own = ["task_a", "task_1", "gsm8k_12_3", "gsm8k_13_0", "12_3_4", "gsm-8k_1_2"]
    uids = ["6f0c-11_0_0", "6f0c-11_0_1", "6f0c-11_1_0", *own]
    found = list(reading(tmp_path, "verl", *(VERL_TEXT | {"uid": uid} for uid in uids)))
    assert [trace.group_id for trace in found] == ["6f0c-11", "6f0c-11", "6f0c-11", *own]
    assert [trace.attempt for trace in found] == [0, 0, 1, *[None] * len(own)]
    assert [trace.id for trace in found][:3] == uids[:3]


def test_verl_what_its_reward_managers_say_is_known_and_other_words_are_counted(tmp_path: Path) -> None:
    words = {"reward": 1.0, "acc": True, "pred": "4", "overlong": False, "overlong_reward": 0.0}
    found = reading(tmp_path, "verl", VERL_TEXT | words | {"elegance": 0.5})
    (trace,) = found
    assert dict(found.unknown_fields) == {"elegance": 1}
    assert trace.extra["elegance"] == 0.5


def test_slime_a_conversation_beside_its_rendered_text_is_the_prompt(tmp_path: Path) -> None:
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]
    trace = one(tmp_path, "slime", SLIME | {"prompt": "<s>q", "raw_prompt": said})
    assert [message.role for message in trace.messages] == ["system", "user", "assistant"]
    assert trace.extra["prompt"] == "<s>q"


def test_skyrl_metrics_of_environments_stand_with_their_rollout(tmp_path: Path) -> None:
    row = {
        "prompt_token_ids": [[1], [1]],
        "response_ids": [[2], [3]],
        "loss_masks": [[1], [1]],
        "env_metrics": [{"steps": 1}, {"steps": 2}],
    }
    found = reading(tmp_path, "skyrl", row)
    assert [trace.extra["env_metrics"] for trace in found] == [{"steps": 1}, {"steps": 2}]
    assert dict(found.unknown_fields) == {}


RUN = {
    "id": "s-1",
    "task_id": "7",
    "trial": 2,
    "reward_info": {"reward": 1.0},
    "messages": [{"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Help."}],
}


def test_tau2_a_file_of_one_simulation_is_read(tmp_path: Path) -> None:
    (tmp_path / "s-1.json").write_text(json.dumps(RUN | {"termination_reason": "user_stop", "hallucination_check": {}}))
    found = read_traces(tmp_path / "s-1.json")
    (trace,) = found
    assert (found.format, trace.id, trace.group_id, trace.attempt, trace.reward) == ("tau2", "s-1", "7", 2, 1.0)
    assert dict(found.unknown_fields) == {}


def test_tau2_a_run_that_broke_says_so_and_a_full_context_is_a_limit(tmp_path: Path) -> None:
    reasons = ["infrastructure_error", "context_window_exceeded", "user_stop"]
    document = {"info": {}, "tasks": [], "simulations": [RUN | {"termination_reason": reason} for reason in reasons]}
    (tmp_path / "results.json").write_text(json.dumps(document))
    found = list(read_traces(tmp_path / "results.json"))
    assert [trace.errors for trace in found] == [["infrastructure_error"], [], []]
    assert [trace.truncated for trace in found] == [None, True, None]


def test_slime_siblings_of_one_rollout_are_told(tmp_path: Path) -> None:
    found = reading(tmp_path, "slime", SLIME | {"rollout_id": 3}, SLIME | {"index": 4, "rollout_id": 3})
    assert [trace.extra["rollout_id"] for trace in found] == [3, 3]
    assert sum(found.notes.values()) == 1
    assert dict(found.unknown_fields) == {}


@pytest.mark.parametrize(
    ("status", "truncated"), [("submitted (exit_cost)", True), ("exit_context", True), ("submitted", None)]
)
def test_swe_agent_an_end_at_a_limit_truncates(status: str, truncated: bool | None, tmp_path: Path) -> None:
    step = {"action": "ls", "observation": "bell", "response": "I look."}
    (tmp_path / "a.traj").write_text(json.dumps({"trajectory": [step], "history": [], "info": {"exit_status": status}}))
    (trace,) = read_traces(tmp_path / "a.traj")
    assert (trace.stop, trace.truncated) == (status, truncated)
