"""Small conversations on real tokenizers with ids and sampled positions known beforehand (tests/cases/render_mask)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracemask.render.drift import compare
from tracemask.render.renderer import Renderer
from tracemask.render.sample import Sample
from tracemask.render.stitch import Stitcher
from tracemask.render.stream import Stream
from tracemask.render.template import Template
from tracemask.render.tokenizer import Tokenizer
from tracemask.render.truncate import truncate
from tracemask.trace.model import Trace

CASES = Path(__file__).resolve().parents[2] / "cases" / "render_mask"
pytestmark = pytest.mark.real


def table(name: str) -> list[dict[str, Any]]:
    return json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))


def named(name: str) -> Any:
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in table(name)])


@cache
def loaded(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def spans_of(sample: Sample) -> list[list[int]]:
    found: list[list[int]] = []
    for at in sample.sampled.nonzero()[0].tolist():
        if found and found[-1][1] == at:
            found[-1][1] = at + 1
        else:
            found.append([at, at + 1])
    return found


def renderer_for(case: dict[str, Any], real_tokenizer: Any, **options: Any) -> Renderer:
    tokenizer = loaded(real_tokenizer(case["tokenizer"]))
    template = case.get("template")
    if template is not None:
        template = Template(template, tokens=tokenizer.token_strings, sandbox="inline")
    return Renderer(tokenizer, template, history="as_rendered", **options)


@named("replies")
def test_render_gives_the_known_ids_and_sampled_positions(case: dict[str, Any], real_tokenizer: Any) -> None:
    renderer = renderer_for(case, real_tokenizer, control_text=case.get("control_text", "text"))
    trace = Trace.from_messages(case["messages"], case.get("tools"))
    samples = renderer.render(trace)
    assert len(samples) == 1
    sample = samples[0]
    if "text" in case:
        assert renderer.render_text(case["messages"], case.get("tools")).text == case["text"]
    if "ids" in case:
        assert sample.token_ids.tolist() == case["ids"]
    if "sampled" in case:
        assert spans_of(sample) == case["sampled"]
    found = {(finding.code, finding.place.turn) for finding in sample.findings}
    for code, message in case.get("findings", []):
        assert (code, message) in found
    if "findings" not in case:
        assert not [code for code, _ in found if code not in ("TM111", "TM316", "TM207")]


@named("drift")
def test_sampled_ids_stay_and_drift_is_named_with_its_first_index(case: dict[str, Any], real_tokenizer: Any) -> None:
    tokenizer = loaded(real_tokenizer(case["tokenizer"]))
    if "messages" not in case:
        found = compare(tokenizer, case["sampled_ids"], case["reencoded"])
        assert found is not None and found.cause == case["cause"]
        assert len(case.get("prompt_ids", [])) + found.first == case["token_index"]
    messages = case.get("messages") or [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": tokenizer.decode_bytes(case["sampled_ids"]).decode(errors="replace")},
    ]
    messages = [dict(message) for message in messages]
    messages[-1]["token_ids"] = case["sampled_ids"]
    if "prompt_ids" in case:
        messages[-1]["prompt_ids"] = case["prompt_ids"]
    sample = renderer_for(case, real_tokenizer).render(Trace.from_messages(messages))[0]
    length = len(case["sampled_ids"])
    assert sample.token_ids[-length:].tolist() == case["sampled_ids"]
    assert sample.sampled[-length:].all() and not sample.sampled[:-length].any()
    if "prompt_ids" in case and "messages" in case:
        assert sample.token_ids.tolist() == case["training_ids"]
        drift = [item for item in sample.drift if item.where == "sampled"]
        assert [(item.cause, item.token) for item in drift] == [(case["cause"], case["token_index"])]


def bare(ids: np.ndarray) -> Stream:
    zeros, none = np.zeros(len(ids), np.uint8), np.full(len(ids), -1, np.int32)
    return Stream(ids, zeros, zeros, zeros, zeros, none, none, np.full(len(ids), np.nan, np.float32))


@named("split")
def test_calls_merge_only_where_the_whole_row_is_the_next_prompt(case: dict[str, Any]) -> None:
    stitcher = Stitcher()
    for prompt, sampled in case["steps"]:
        context, reply = np.asarray(prompt, np.int32), np.asarray(sampled, np.int32)
        row, have = stitcher.open(context, None, 0)
        row.append(bare(context[have:]))
        row.own(row.length, row.length + len(reply))
        row.append(bare(reply))
    assert [row.ids.tolist() for row in stitcher.rows] == [ids for ids, _ in case["rows"]]
    owned = [[list(span) for span in row.owned if span[0] < span[1]] for row in stitcher.rows]
    assert owned == [[list(span) for span in spans] for _, spans in case["rows"]]
    tokens = sum(end - start for spans in owned for start, end in spans)
    assert tokens == sum(len(sampled) for _, sampled in case["steps"])


@named("extend")
def test_the_newline_between_turns_is_kept_when_ids_are_extended(case: dict[str, Any], real_tokenizer: Any) -> None:
    renderer = renderer_for(case, real_tokenizer)
    new = [case["messages"][-1]]
    assert renderer.next_prompt_ids(case["prompt_ids"] + case["sampled_ids"], new) == case["next_prompt_ids"]
    messages = [dict(message) for message in case["messages"]]
    messages[1] |= {"token_ids": case["sampled_ids"], "prompt_ids": case["prompt_ids"]}
    sample = renderer.render(Trace.from_messages(messages))[0]
    assert spans_of(sample) == case["sampled"]
    common = len(sample)
    assert sample.token_ids.tolist() == case["next_prompt_ids"][:common]


@named("truncate")
def test_a_cut_keeps_what_is_left_and_says_where_it_lies(case: dict[str, Any], real_tokenizer: Any) -> None:
    source = next(entry for entry in table("replies") if entry["name"] == case["from_case"])
    renderer = renderer_for(source, real_tokenizer)
    whole = renderer.render(Trace.from_messages(source["messages"], source["tools"]))[0]
    sample = truncate(whole, case["max_length"], side=case["side"])
    expected = case["expected"]
    assert sample.token_ids.tolist() == source["ids"][: case["max_length"]]
    assert spans_of(sample) == expected["mask"]
    assert int(sample.sampled.sum()) == expected["loss_tokens"]
    assert sample.truncated
    finding = sample.findings[-1]
    assert finding.code == "TM505"
    if "cut_author" in expected:
        assert finding.data["author"] == expected["cut_author"]
    if "stop_token_present_in_last_turn" in expected:
        assert finding.data["stop_lost"] is not expected["stop_token_present_in_last_turn"]
