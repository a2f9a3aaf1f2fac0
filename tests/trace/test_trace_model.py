"""The canonical model: trees, unknown fields, arrays, versions, the published schema."""

from __future__ import annotations

import json
import math
import struct
from base64 import b64encode
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_fixtures import ROOT

from tracemask.core.errors import TraceError
from tracemask.core.vocab import Fidelity
from tracemask.trace import Trace, read_traces, schema
from tracemask.trace.jsonl import Arrays, dumps, from_json, to_json, write_traces

MESSAGES = [
    {"role": "user", "content": "q"},
    {"role": "assistant", "content": "a", "token_ids": [5, 151668], "logprobs": [-0.5, None], "prompt_ids": [1, 2]},
]


def tree(*parents: str | None) -> Trace:
    messages = [{"id": f"m{i}", "role": "user", "author": "user", "parent": parent} for i, parent in enumerate(parents)]
    return Trace.model_validate({"id": "t", "messages": messages})


def test_a_linear_trace_has_one_branch_without_naming_parents() -> None:
    trace = Trace.from_messages(MESSAGES)
    assert [[message.id for message in path] for path in trace.branches()] == [["m0", "m1"]]


def test_a_tree_has_one_branch_per_leaf_in_list_order() -> None:
    paths = tree(None, "m0", "m0", "m1", None).branches()
    assert [[message.id for message in path] for path in paths] == [["m0", "m2"], ["m0", "m1", "m3"], ["m4"]]


def test_an_explicit_null_parent_survives_the_round_trip_as_a_new_root() -> None:
    trace = tree(None, "m0", None)
    again = from_json(json.loads(dumps(to_json(trace))))
    assert again.parents() == {"m0": None, "m1": "m0", "m2": None}


@pytest.mark.parametrize("parents", [None, (None, "m0", None, "m2")])
def test_pydantics_own_dump_and_ours_give_the_same_tree_back(parents: tuple[str | None, ...] | None) -> None:
    trace = Trace.from_messages([*MESSAGES, *MESSAGES], id="t") if parents is None else tree(*parents)
    for again in (
        Trace.model_validate_json(trace.model_dump_json()),
        Trace.model_validate(trace.model_dump()),
        from_json(json.loads(trace.model_dump_json())),
        from_json(json.loads(dumps(to_json(trace)))),
        trace.model_copy(deep=True),
    ):
        assert again.parents() == trace.parents()
        assert again == trace
    assert len(trace.branches()) == (1 if parents is None else 2)


def test_a_cycle_is_refused_by_branches_and_never_loops() -> None:
    with pytest.raises(TraceError, match="TM110"):
        tree("m1", "m0").branches()


def test_unknown_fields_are_kept_where_they_stood() -> None:
    value = json.loads((ROOT / "tracemask/traces.jsonl").read_text().splitlines()[0])
    again = to_json(from_json(value))
    assert again["later_field"] == {"x": 1}
    assert again["messages"][1]["sampled"]["note"] == "kept"
    assert again["messages"][2]["blocks"][0]["colour"] == "red"


def test_base64_arrays_are_little_endian_int32_and_float32_with_nan_for_missing() -> None:
    ids = b64encode(struct.pack("<3i", 1, 2**31 - 1, 0)).decode()
    logprobs = b64encode(struct.pack("<3f", -0.5, math.nan, -1.0)).decode()
    message = {"id": "a", "role": "assistant", "author": "policy", "sampled": {"token_ids": ids, "logprobs": logprobs}}
    sampled = Trace.model_validate({"id": "t", "messages": [message]}).messages[0].sampled
    assert sampled is not None
    assert sampled.token_ids == [1, 2**31 - 1, 0]
    assert sampled.logprobs == [-0.5, None, -1.0]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2**31 - 1), min_size=1), st.data())
def test_arrays_come_back_equal_from_lists_and_from_base64(ids: list[int], data: st.DataObject) -> None:
    value = st.one_of(st.none(), st.floats(-100, 0, width=32))
    logprobs = data.draw(st.lists(value, min_size=len(ids), max_size=len(ids)))
    trace = Trace.from_messages([{"role": "assistant", "content": "", "token_ids": ids, "logprobs": logprobs}])
    for arrays in Arrays:
        assert from_json(json.loads(dumps(to_json(trace, arrays=arrays)))) == trace


@pytest.mark.parametrize("bad", [[True], ["1"], [1.0], [-1], [2**31], "AwA=", "not base64!", 7])
def test_token_ids_of_another_type_are_refused(bad: object) -> None:
    with pytest.raises(TraceError, match="TM911"):
        Trace.from_messages([{"role": "assistant", "content": "", "token_ids": bad}])
    message = {"id": "a", "role": "assistant", "author": "policy", "sampled": {"token_ids": bad}}
    with pytest.raises(TraceError, match="TM911"):
        from_json({"id": "t", "messages": [message]})


def test_fidelity_is_the_least_of_the_policys_messages() -> None:
    exact, completion, text = dict(MESSAGES[1]), dict(MESSAGES[1]), {"role": "assistant", "content": "t"}
    del completion["prompt_ids"]
    assert Trace.from_messages([exact]).fidelity is Fidelity.EXACT
    assert Trace.from_messages([exact, completion]).fidelity is Fidelity.COMPLETION
    assert Trace.from_messages([exact, completion, text]).fidelity is Fidelity.MESSAGES
    assert Trace.from_messages([exact, text | {"author": "model"}, text | {"weight": 0}]).fidelity is Fidelity.EXACT


def test_an_absent_reward_stays_absent_and_zero_stays_zero() -> None:
    assert Trace.from_messages(MESSAGES).reward is None
    trace = from_json(to_json(Trace.from_messages(MESSAGES, reward=0.0)))
    assert trace.reward == 0.0
    assert "reward" in to_json(trace)


def test_a_nan_reward_is_written_as_nan_not_as_missing() -> None:
    line = dumps(to_json(Trace.from_messages(MESSAGES, reward=math.nan)))
    assert b'"reward":NaN' in line


def test_an_unknown_major_version_is_refused_and_a_later_minor_one_is_read() -> None:
    with pytest.raises(TraceError, match="TM914"):
        from_json({"schema_version": "2.0", "id": "x", "messages": []})
    assert from_json({"schema_version": "1.9", "id": "x", "messages": [], "new": 1}).model_extra == {"new": 1}


def test_an_older_version_is_upgraded_without_touching_the_input() -> None:
    old = {
        "schema_version": "0.9",
        "id": "x",
        "messages": [{"id": "a", "role": "user", "author": "user", "content": "t"}],
    }
    before = json.dumps(old)
    assert from_json(old).messages[0].text() == "t"
    assert json.dumps(old) == before


def test_the_published_schema_is_the_models_and_accepts_what_we_write() -> None:
    path = Path(__file__).resolve().parents[2] / "schemas" / "trace.v1.schema.json"
    assert json.loads(path.read_text(encoding="utf-8")) == schema(), "make schemas"
    validator = jsonschema.Draft202012Validator(schema())
    for trace in read_traces(ROOT / "openai/chat.jsonl"):
        for arrays in Arrays:
            validator.validate(json.loads(dumps(to_json(trace, arrays=arrays))))
    assert not validator.is_valid({"id": "x", "messages": [{"id": "a", "role": "narrator", "author": "user"}]})


def test_writing_the_same_traces_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    traces = list(read_traces(ROOT / "verifiers/traces.jsonl"))
    assert write_traces(tmp_path / "a.jsonl", traces) == write_traces(tmp_path / "b.jsonl", traces) == 3
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    assert [trace.messages for trace in read_traces(tmp_path / "a.jsonl")] == [trace.messages for trace in traces]
