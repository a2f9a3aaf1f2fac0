"""The recorder: what was finished is on disk, whatever happens next."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace import read_traces
from tracemask.trace.jsonl import Arrays
from tracemask.trace.recorder import Recorder

ASK = [{"role": "user", "content": "q"}]


def vllm(text: str, ids: list[int], prompt: list[int], **choice: Any) -> dict[str, Any]:
    content = [{"token": "x", "logprob": -0.5} for _ in ids]
    return {
        "model": "policy-1",
        "prompt_token_ids": prompt,
        "choices": [
            {
                "message": {"role": "assistant", "content": text, "tool_calls": None},
                "token_ids": ids,
                "logprobs": {"content": content},
                "finish_reason": "stop",
                **choice,
            }
        ],
    }


class Response:
    """What a client library returns: an object with model_dump."""

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value

    def model_dump(self) -> dict[str, Any]:
        return self.value


@pytest.mark.parametrize("arrays", list(Arrays))
def test_calls_of_one_rollout_become_one_exact_trace(tmp_path: Path, arrays: Arrays) -> None:
    recorder = Recorder(tmp_path / "log.jsonl", arrays=arrays)
    with recorder.rollout(id="r", group_id="g", attempt=3) as rollout:
        rollout.call(ASK, vllm("a", [3, 4], [1, 2]), temperature=1.0)
        rollout.call(
            [*ASK, {"role": "assistant", "content": "a"}, {"role": "user", "content": "more"}],
            Response(vllm("b", [6], [1, 2, 3, 4, 5])),
        )
        rollout.add({"role": "user", "content": "thanks"})
        rollout.reward = 0.5
    (trace,) = read_traces(tmp_path / "log.jsonl")
    assert [message.text() for message in trace.messages] == ["q", "a", "more", "b", "thanks"]
    assert (trace.fidelity, trace.reward, trace.attempt) == (Fidelity.EXACT, 0.5, 3)
    first = trace.messages[1].sampled
    assert first is not None
    assert (first.token_ids, first.logprobs, first.prompt_ids) == ([3, 4], [-0.5, -0.5], [1, 2])
    assert first.temperature == 1.0


def test_sglang_meta_info_and_token_id_strings_are_understood(tmp_path: Path) -> None:
    sglang = {"choices": [{"message": {"content": "a"}, "meta_info": {"output_token_logprobs": [[-0.25, 9, "a"]]}}]}
    strings = {
        "choices": [{"message": {"content": "b"}, "logprobs": {"content": [{"token": "token_id:7", "logprob": -1.0}]}}]
    }
    with Recorder(tmp_path / "log.jsonl").rollout(id="r") as rollout:
        rollout.call(ASK, sglang)
        rollout.call([{"role": "user", "content": "other"}], strings, edge="compaction")
    (trace,) = read_traces(tmp_path / "log.jsonl")
    assert [(m.sampled.token_ids, m.sampled.logprobs) for m in trace.messages if m.sampled] == [
        ([9], [-0.25]),
        ([7], [-1.0]),
    ]
    assert [(edge.kind, edge.at, edge.to) for edge in trace.edges] == [("compaction", "m0", trace.messages[2].id)]


def test_a_half_written_line_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    recorder = Recorder(path)
    for name in ("a", "b"):
        with recorder.rollout(id=name) as rollout:
            rollout.call(ASK, vllm("x", [1], [0]))
        if name == "a":
            with path.open("ab") as file:
                file.write(b'{"schema_version": "1.0", "id": "died he')
    reading = read_traces(path)
    assert [trace.id for trace in reading] == ["a", "b"]
    assert [error.where for error in reading.skipped] == ["log.jsonl:2"]


def test_an_exception_is_recorded_and_goes_on(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="engine"), Recorder(tmp_path / "log.jsonl").rollout(id="r") as rollout:
        rollout.call(ASK, vllm("x", [1], [0], finish_reason="length"))
        raise RuntimeError("engine is gone")
    (trace,) = read_traces(tmp_path / "log.jsonl")
    assert trace.errors == ["RuntimeError: engine is gone"]
    assert trace.truncated is True


def test_a_response_that_does_not_fit_is_a_coded_error(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "log.jsonl")
    for response, code in (({}, "TM911"), (vllm("x", [1], [0], logprobs={"content": []}), "TM101")):
        with pytest.raises(TraceError, match=code), recorder.rollout(id="r") as rollout:
            rollout.call(ASK, response)


def test_several_choices_need_a_word_and_each_is_recorded_as_itself(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "log.jsonl")
    response = vllm("a", [3], [1])
    response["choices"].append(vllm("b", [4], [1])["choices"][0])
    with pytest.raises(TraceError, match=r"TM911 2 choices"), recorder.rollout(id="both") as rollout:
        rollout.call(ASK, response)
    for number in (0, 1):
        with recorder.rollout(id=str(number), group_id="g") as rollout:
            rollout.call(ASK, response, choice=number)
    with pytest.raises(TraceError, match=r"no choice 2 among 2"), recorder.rollout(id="none") as rollout:
        rollout.call(ASK, response, choice=2)
    kept = [trace for trace in read_traces(tmp_path / "log.jsonl") if trace.group_id == "g"]
    assert [(t.messages[-1].text(), t.messages[-1].sampled.token_ids) for t in kept] == [("a", [3]), ("b", [4])]  # type: ignore[union-attr]


def test_a_chunk_of_a_stream_is_not_taken_for_an_empty_reply(tmp_path: Path) -> None:
    chunk = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": "a"}}]}
    for response in (chunk, iter([chunk])):
        with pytest.raises(TraceError, match="TM911"), Recorder(tmp_path / "log.jsonl").rollout(id="r") as rollout:
            rollout.call(ASK, response)


def test_a_text_completion_and_litellms_fields_are_understood(tmp_path: Path) -> None:
    text = {
        "prompt_token_ids": [1],
        "choices": [{"text": "a", "token_ids": [3], "logprobs": {"token_logprobs": [-0.5]}}],
    }
    lite = {
        "prompt_token_ids": [1, 3, 5],
        "choices": [
            {"message": {"content": "b"}, "provider_specific_fields": {"token_ids": [6]}, "finish_reason": "stop"}
        ],
    }
    with Recorder(tmp_path / "log.jsonl").rollout(id="r") as rollout:
        rollout.call(ASK, text)
        rollout.call([*ASK, {"role": "assistant", "content": "a"}, {"role": "user", "content": "more"}], lite)
    (trace,) = read_traces(tmp_path / "log.jsonl")
    found = [
        (m.text(), m.sampled.token_ids, m.sampled.prompt_ids, m.sampled.logprobs) for m in trace.messages if m.sampled
    ]
    assert found == [("a", [3], [1], [-0.5]), ("b", [6], [1, 3, 5], None)]


def test_the_weights_that_sglang_names_are_the_policys_version(tmp_path: Path) -> None:
    meta = {"output_token_logprobs": [[-0.25, 9, "a"]], "weight_version": "step-7"}
    with Recorder(tmp_path / "log.jsonl").rollout(id="r") as rollout:
        rollout.call(ASK, {"choices": [{"message": {"content": "a"}, "meta_info": meta}]})
    (trace,) = read_traces(tmp_path / "log.jsonl")
    assert [message.sampled.policy_version for message in trace.messages if message.sampled] == ["step-7"]


@pytest.mark.parametrize(
    "choice",
    [
        {"message": "words"},
        {"message": {"content": "a"}, "token_ids": "x"},
        {"message": {"content": "a"}, "token_ids": [1], "logprobs": {"content": [{"logprob": "x"}]}},
        {"message": {"content": "a"}, "meta_info": {"output_token_logprobs": [[-1.0]]}},
        {"message": {"content": "a"}, "meta_info": {"output_token_logprobs": {"a": 1}}},
        {"message": {"content": "a"}, "token_ids": [1], "logprobs": {"content": "x"}},
        "words",
    ],
)
def test_fields_of_another_kind_in_a_response_are_coded_errors(choice: Any, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="TM911"), Recorder(tmp_path / "log.jsonl").rollout(id="r") as rollout:
        rollout.call(ASK, {"choices": [choice]})


def _record(path: str, worker: int) -> None:
    recorder = Recorder(path)
    for number in range(20):
        with recorder.rollout(id=f"{worker}-{number}") as rollout:
            rollout.call(ASK, vllm("long " * 2000, list(range(50)), [0]))


def test_many_processes_may_append_to_one_file(tmp_path: Path) -> None:
    path = str(tmp_path / "log.jsonl")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_record, args=(path, worker)) for worker in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    ids = [json.loads(line)["id"] for line in Path(path).read_text().splitlines()]
    assert sorted(ids) == sorted(f"{w}-{n}" for w in range(3) for n in range(20))


def test_a_value_that_json_does_not_have_is_refused_where_it_is_set_and_the_rollout_is_kept(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "log.jsonl")
    with recorder.rollout(id="a") as rollout:
        rollout.call(ASK, vllm("x", [1], [0]))
        for odd in (
            lambda: setattr(rollout, "extra", {"seen": {1, 2}}),
            lambda: rollout.call(ASK, vllm("x", [1], [0]), tools=[{"function": print}]),
            lambda: rollout.call(ASK, vllm("x", [1], [0]), seed=object()),
        ):
            with pytest.raises(TraceError, match="TM911 JSON has no"):
                odd()
    with pytest.raises(TraceError, match="TM911 JSON has no object"), recorder.rollout(id="b", extra={"a": object()}):
        pass
    assert [trace.id for trace in read_traces(tmp_path / "log.jsonl")] == ["a"]
