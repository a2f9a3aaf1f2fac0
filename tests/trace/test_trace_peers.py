"""Logs written by the packages that own their format: what we read must be what they say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tracemask.core.vocab import Fidelity
from tracemask.trace import read_traces
from tracemask.trace.model import ToolCall

pytestmark = pytest.mark.peers


def nodes(types: Any, graph: Any) -> list[Any]:
    """A shared call, then two branches below it."""
    call = types.ToolCall(id="c1", name="tide", arguments='{"hour": 6}')
    make = graph.MessageNode
    return [
        make(
            parent=None, message=types.SystemMessage(content="Read the table."), token_ids=[1, 2], mask=[False, False]
        ),
        make(parent=0, message=types.UserMessage(content="How high?"), token_ids=[3], mask=[False]),
        make(
            parent=1,
            message=types.AssistantMessage(reasoning_content="Look.", tool_calls=[call]),
            sampled=True,
            token_ids=[4, 5, 6],
            mask=[False, True, True],
            logprobs=[-0.5, -0.25],
            advantages=[1.0, 1.0],
        ),
        make(parent=2, message=types.ToolMessage(tool_call_id="c1", content="2 m"), token_ids=[7], mask=[False]),
        make(
            parent=3,
            message=types.AssistantMessage(content="2 m."),
            sampled=True,
            token_ids=[8, 9],
            mask=[False, True],
            logprobs=[-0.125],
        ),
        make(parent=2, message=types.ToolMessage(tool_call_id="c1", content="error"), token_ids=[10], mask=[False]),
        make(
            parent=5,
            message=types.AssistantMessage(content="Failed."),
            sampled=True,
            token_ids=[8, 11],
            mask=[False, True],
            logprobs=[-1.0],
        ),
    ]


def test_verifiers_branches_are_ours_token_by_token(tmp_path: Path) -> None:
    pytest.importorskip("verifiers")
    from verifiers.v1 import graph, types
    from verifiers.v1.trace import Reward, Trace, WireTrace

    theirs = WireTrace.model_validate(
        {
            "id": "t",
            "task": {"type": "Tide", "data": {}, "key": "k"},
            "agent": {"config": {"harness": {"id": "x"}}, "name": "solver"},
            "nodes": [json.loads(node.model_dump_json()) for node in nodes(types, graph)],
            "rewards": {"right": Reward(score=1.0, weight=0.5).model_dump()},
        }
    )
    assert isinstance(theirs, Trace)
    (tmp_path / "traces.jsonl").write_text(json.dumps(theirs.to_record(float_decimals=None)) + "\n")
    reading = read_traces(tmp_path / "traces.jsonl")
    (ours,) = reading
    assert (reading.format, reading.skipped, dict(reading.unknown_fields)) == ("verifiers", [], {})
    assert ours.fidelity is Fidelity.EXACT
    assert ours.reward == theirs.reward
    assert len(ours.branches()) == len(theirs.branches)
    for path, branch in zip(ours.branches(), theirs.branches, strict=True):
        last = path[-1].sampled
        assert last is not None
        assert [*(last.prompt_ids or []), *last.token_ids] == branch.token_ids
        given = [value for message in path if message.sampled for value in message.sampled.logprobs or []]
        assert given == [value for value, flag in zip(branch.logprobs, branch.sampled_mask, strict=True) if flag]
        assert [message.role for message in path] == [node.message.role for node in branch.nodes]


def test_inspect_writes_an_archive_that_we_read_as_it_reads_it_itself(tmp_path: Path) -> None:
    pytest.importorskip("inspect_ai")
    from inspect_ai.event import ModelEvent
    from inspect_ai.log import EvalConfig, EvalDataset, EvalLog, EvalSample, EvalSpec, read_eval_log, write_eval_log
    from inspect_ai.model import (
        ChatMessageSystem,
        ChatMessageTool,
        ChatMessageUser,
        GenerateConfig,
        ModelOutput,
    )
    from inspect_ai.scorer import Score
    from inspect_ai.tool import ToolInfo

    name = "mockllm/model"
    system, user = ChatMessageSystem(content="Read."), ChatMessageUser(content="How high is the water? " * 20)
    asked = ModelOutput.for_tool_call(name, "tide", {"hour": 2})
    call = (asked.message.tool_calls or [])[0]
    result = ChatMessageTool(content="2 m", tool_call_id=call.id, function="tide")
    answered = ModelOutput.from_content(name, "It is 2 m.")
    tools = [ToolInfo(name="tide", description="Height of the water.")]

    def event(given: list[Any], output: Any) -> ModelEvent:
        return ModelEvent(
            model=name, input=given, tools=tools, tool_choice="auto", config=GenerateConfig(), output=output
        )

    calls = [event([system, user], asked), event([system, user, asked.message, result], answered)]
    sample = EvalSample(
        id="one",
        epoch=1,
        input=user.text,
        target="2 m",
        messages=[system, user, asked.message, result, answered.message],
        output=answered,
        scores={"includes": Score(value="C")},
        events=calls,
    )
    spec = EvalSpec(
        created="2026-01-01T00:00:00+00:00", task="tides", dataset=EvalDataset(), model=name, config=EvalConfig()
    )
    path = tmp_path / "tides.eval"
    write_eval_log(EvalLog(eval=spec, samples=[sample], status="success"), str(path))
    theirs = read_eval_log(str(path)).samples
    reading = read_traces(path)
    (ours,) = reading
    assert (reading.format, reading.skipped) == ("inspect", [])
    assert theirs is not None
    (branch,) = ours.branches()
    assert [message.role for message in branch] == [message.role for message in theirs[0].messages]
    assert [message.text() for message in branch] == [message.text for message in theirs[0].messages]
    arguments = [block.arguments for message in branch for block in message.blocks if isinstance(block, ToolCall)]
    assert arguments == [{"hour": 2}]
    assert ours.reward == 1.0
    assert ours.tools is not None
    assert ours.tools[0]["function"]["name"] == "tide"


def test_harbor_reads_our_atif_fixture_and_says_the_same_of_it(tmp_path: Path) -> None:
    pytest.importorskip("harbor")
    from harbor.models.trajectories import Trajectory
    from trace_fixtures import ROOT

    raw = json.loads((ROOT / "atif/trial/agent/trajectory.json").read_text())
    theirs = Trajectory.model_validate(raw)
    (tmp_path / "trajectory.json").write_text(json.dumps(theirs.to_json_dict()))
    ours = next(iter(read_traces(tmp_path / "trajectory.json")))
    steps = [step for step in theirs.steps if step.metrics and step.metrics.prompt_token_ids]
    sampled = [message.sampled for message in ours.messages if message.sampled]
    assert [(call.prompt_ids, call.token_ids) for call in sampled] == [
        (step.metrics.prompt_token_ids, step.metrics.completion_token_ids) for step in steps if step.metrics
    ]


def test_mini_swe_agent_runs_are_read_as_it_saw_them(tmp_path: Path) -> None:
    pytest.importorskip("minisweagent")
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.test_models import DeterministicToolcallModel, make_toolcall_output

    def output(content: str | None, *commands: tuple[str, str]) -> dict[str, Any]:
        calls = [
            {
                "id": name,
                "type": "function",
                "function": {"name": "bash", "arguments": json.dumps({"command": command})},
            }
            for name, command in commands
        ]
        return make_toolcall_output(content, calls, [{"command": c, "tool_call_id": n} for n, c in commands])

    outputs = [
        output(None, ("a", "echo hi"), ("b", "false")),
        output("Done.", ("c", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
    ]
    agent = DefaultAgent(
        DeterministicToolcallModel(outputs=outputs),
        LocalEnvironment(),
        system_template="s",
        instance_template="do {{task}}",
    )
    agent.run("it")
    agent.save(tmp_path / "run.traj.json")
    reading = read_traces(tmp_path / "run.traj.json")
    (ours,) = reading
    assert (reading.format, reading.skipped, dict(reading.unknown_fields)) == ("swe-agent", [], {})
    theirs = [message for message in agent.messages if message["role"] != "exit"]
    assert [message.role for message in ours.messages] == [message["role"] for message in theirs]
    assert [message.text() for message in ours.messages] == [message["content"] or "" for message in theirs]
    assert ours.stop == "Submitted"
