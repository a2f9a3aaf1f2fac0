"""Defects from public bug reports, on real tokenizers: the fact, the row and the token that must be told."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tracemask.check.runner import check_dataset
from tracemask.check.sources import check_paths
from tracemask.render.renderer import Renderer
from tracemask.render.tokenizer import Tokenizer
from tracemask.store.row import Row
from tracemask.store.rows import of_sample
from tracemask.trace import Trace

pytestmark = pytest.mark.real

# One tool round trip in Qwen3's format: a ferry timetable, a board, an answer.
FERRY = """<|im_start|>system
You keep the ferry timetable.

# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{"type": "function", "function": {"name": "board", "parameters": {"type": "object", "properties": {}}}}
</tools><|im_end|>
<|im_start|>user
When does the Orla leave Pier 4?<|im_end|>
<|im_start|>assistant
@<think>
I should look at the board.
</think>

<tool_call>
{"name": "board", "arguments": {"pier": 4}}
</tool_call><|im_end|>@
<|im_start|>user
<tool_response>
Orla 07:40 delayed
</tool_response><|im_end|>
<|im_start|>assistant
@<think>
The board says 07:40.
</think>

She leaves at 07:40, delayed.<|im_end|>@
"""


@cache
def load(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


class Foreign(list):
    kind = "foreign"
    metadata: dict = {}


class Ours(list):
    kind = "tracemask"
    metadata: dict = {}


def row(ids, mask, index=0, **columns):
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    return Row(index, {"token_ids": np.asarray(ids, np.int32), "mask": np.asarray(mask), **arrays})


def told(rows, tokenizer, *, severities="EWi"):
    report = check_dataset(rows, tokenizer=tokenizer)
    return {
        (f.code, f.place.row, f.place.token)
        for group in report.groups
        if group.severity.value in severities
        for f in group.examples
    }


def rendered(tokenizer, messages, *, history="auto", **facts):
    trace = Trace.from_messages(messages, id="t", **facts)
    samples = Renderer(tokenizer, history=history).render(trace)
    return Ours(of_sample(sample, trace, index=i) for i, sample in enumerate(samples))


def ferry(tokenizer):
    ids, mask = [], []
    for i, piece in enumerate(FERRY.split("@")):
        part = tokenizer.encode(piece)
        ids += part
        mask += [i % 2] * len(part)
    return ids, np.array(mask)


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_mask_moved_by_one_is_told_as_moved_though_its_count_is_right(real_tokenizer, shift):
    tokenizer = load(real_tokenizer("qwen3"))
    ids, mask = ferry(tokenizer)
    assert told(Foreign([row(ids, mask)]), tokenizer, severities="EW") == set()
    moved = np.roll(mask, shift)
    first = int(np.argmax(mask))
    report = check_dataset(Foreign([row(ids, moved)]), tokenizer=tokenizer)
    (finding,) = [f for group in report.groups if group.severity.value in "EW" for f in group.examples]
    assert finding.code == "TM302" and finding.data["shift"] == shift
    assert finding.place.token == (first - 1 if shift < 0 else first)


def test_a_mask_of_zeros_beside_a_reply_is_an_error(real_tokenizer):
    tokenizer = load(real_tokenizer("qwen3"))
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nHello<|im_end|>\n"
    ids = tokenizer.encode(text)
    report = check_dataset(Foreign([row(ids, [0] * len(ids))]), tokenizer=tokenizer)
    assert report.codes == ["TM301"] and "policy" in report.findings[0].message


def test_a_prompt_measured_without_its_generation_prompt_trains_the_header(real_tokenizer):
    tokenizer = load(real_tokenizer("qwen3"))
    before = tokenizer.encode("<|im_start|>user\nHi<|im_end|>\n")
    after = tokenizer.encode("<|im_start|>assistant\n<think>\n\n</think>\n\nHello<|im_end|>\n")
    rows = Foreign([row(before + after, [0] * len(before) + [1] * len(after))])
    found = told(rows, tokenizer, severities="EW")
    assert ("TM307", 0, len(before)) in found
    assert {code for code, _, _ in found} <= {"TM307", "TM310"}


def test_masking_by_pad_id_drops_real_stops_where_pad_is_eos(real_tokenizer):
    tokenizer = load(real_tokenizer("deepseek_v3"))
    stop = 1
    head = tokenizer.encode("<｜begin▁of▁sentence｜><｜User｜>Tide?<｜Assistant｜>")
    ids = [*head, *tokenizer.encode("Low."), stop, stop, stop]
    n = len(ids)
    right = [0] * len(head) + [1] * (n - len(head) - 2) + [0, 0]
    wrong = [int(on and token != stop) for on, token in zip(right, ids, strict=True)]
    assert told(Foreign([row(ids, right)]), tokenizer, severities="EW") == set()
    assert told(Foreign([row(ids, wrong)]), tokenizer, severities="EW") == {("TM305", 0, n - 3)}
    everything = [0] * len(head) + [1] * (n - len(head))
    assert told(Foreign([row(ids, everything)]), tokenizer, severities="EW") == {("TM312", 0, n - 2)}


def test_an_id_of_the_padded_output_layer_is_out_of_range(real_tokenizer):
    tokenizer = load(real_tokenizer("qwen3"))
    ids = [151644, 77091, 198, 11578, 151700, 151645]
    report = check_dataset(Foreign([row(ids, [0, 0, 0, 1, 1, 1])]), tokenizer=tokenizer)
    (finding,) = [f for f in report.findings if f.code == "TM201"]
    assert finding.place.token == 4 and finding.data["id"] == 151700 and "151668" in finding.message


def test_reasoning_that_is_never_closed_is_told_from_the_render(real_tokenizer):
    tokenizer = load(real_tokenizer("qwen3"))
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<think>\nstill going"}]
    rows = rendered(tokenizer, messages)
    report = check_dataset(rows, tokenizer=tokenizer)
    assert [(f.code, f.place.turn) for f in report.findings if f.code == "TM318"] == [("TM318", 1)]


def test_reasoning_that_the_template_drops_is_told_where_nothing_forks(real_tokenizer):
    tokenizer = load(real_tokenizer("qwen3"))
    messages = [{"role": "system", "content": "s"}, {"role": "assistant", "content": "<think>\nr\n</think>\n\na"}]
    report = check_dataset(rendered(tokenizer, messages, history="as_rendered"), tokenizer=tokenizer)
    assert ("TM103", 1) in {(f.code, f.place.turn) for f in report.findings}


def test_a_call_and_tools_that_a_template_ignores_are_both_told(real_tokenizer):
    tokenizer = load(real_tokenizer("llama3_1"))
    tool = {"type": "function", "function": {"name": "log", "parameters": {"type": "object", "properties": {}}}}
    call = {"id": "c", "type": "function", "function": {"name": "log", "arguments": {}}}
    messages = [
        {"role": "user", "content": "Log?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "42"},
    ]
    rows = rendered(tokenizer, messages, tools=[tool])
    assert b"None" not in tokenizer.decode_bytes(rows[0]["token_ids"])
    found = {(f.code, f.place.turn) for f in check_dataset(rows, tokenizer=tokenizer).findings}
    assert {("TM103", 1), ("TM112", None)} <= found


def test_a_limit_inside_a_character_is_noted_at_its_token_and_nothing_raises(real_tokenizer):
    tokenizer = load(real_tokenizer("qwen3"))
    head = tokenizer.encode("<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n")
    ids = [*head, 136885, 25, 82912]
    found = told(Foreign([row(ids, [0] * len(head) + [1] * 3)]), tokenizer)
    assert ("TM213", 0, len(ids) - 1) in found
    assert {code for code, _, _ in found if code != "TM213"} == {"TM107"}


def test_bytes_that_are_no_text_in_the_middle_of_a_reply_are_noted_at_their_token(real_tokenizer):
    tokenizer = load(real_tokenizer("deepseek_v3"))
    head = tokenizer.encode("<｜begin▁of▁sentence｜><｜User｜>Q<｜Assistant｜>")
    ids = [*head, 40, 3726, 321, 28, 7351, 102, 2006, 1]
    found = told(Foreign([row(ids, [0] * len(head) + [1] * 8)]), tokenizer)
    assert ("TM213", 0, len(head) + 4) in found
    assert {code for code, _, _ in found} <= {"TM213", "TM202"}


DRIFT = [
    ("qwen3", [39, 83722, 151645], 0, "bpe_split"),  # H + AVING, where the tokenizer splits HAV + ING
    ("qwen3", [34, 5645, 53839, 151645], 1, "nfc"),  # e and a combining accent, which the tokenizer composes
]


@pytest.mark.parametrize(("name", "sampled", "first", "cause"), DRIFT)
def test_sampled_ids_that_encoding_would_change_are_kept_and_noted(real_tokenizer, name, sampled, first, cause):
    tokenizer = load(real_tokenizer(name))
    prompt = tokenizer.encode("<|im_start|>user\nWrite the verb.<|im_end|>\n<|im_start|>assistant\n")
    text = tokenizer.decode_bytes(sampled[:-1]).decode()
    messages = [
        {"role": "user", "content": "Write the verb."},
        {"role": "assistant", "content": text, "prompt_token_ids": prompt, "token_ids": sampled},
    ]
    rows = rendered(tokenizer, messages)
    assert rows[0]["token_ids"].tolist()[: len(prompt) + len(sampled)] == prompt + sampled
    findings = [f for f in check_dataset(rows, tokenizer=tokenizer).findings if f.code == "TM202"]
    assert [(f.place.token, f.severity.value) for f in findings] == [(len(prompt) + first, "i")]
    assert findings[0].cause.startswith(cause)


def test_a_template_that_trims_contents_is_drift_at_the_first_trimmed_token(real_tokenizer):
    tokenizer = load(real_tokenizer("llama3_1"))
    prompt = [128000, 128006, 882, 128007, 271, 51, 579, 30, 128009, 128006, 78191, 128007, 271]
    sampled = [12310, 13, 720, 128009]
    messages = [
        {"role": "user", "content": "Tide?"},
        {"role": "assistant", "content": " Low. \n", "prompt_token_ids": prompt, "token_ids": sampled},
    ]
    rows = rendered(tokenizer, messages)
    assert rows[0]["token_ids"].tolist() == prompt + sampled
    assert rows[0]["sampled"].tolist() == [False] * 13 + [True] * 4
    findings = [f for f in check_dataset(rows, tokenizer=tokenizer).findings if f.code == "TM202"]
    assert [f.place.token for f in findings] == [13] and "whitespace_trim" in findings[0].cause


def test_each_id_of_the_stop_set_completes_a_turn_whatever_the_finish_reason(real_tokenizer):
    tokenizer = load(real_tokenizer("gemma3"))
    renderer = Renderer(tokenizer, stop=["<eos>"])
    cases = [([25907, 236761, 106], "stop"), ([25907, 236761, 1], "stop"), ([25907, 684], "length"),
             ([25907, 236761, 106], "length")]  # fmt: skip
    rows = Ours()
    for i, (ids, reason) in enumerate(cases):
        reply = {"role": "assistant", "content": "x", "token_ids": ids, "finish_reason": reason}
        trace = Trace.from_messages([{"role": "user", "content": f"Q{i}"}, reply], id=f"t{i}")
        rows += [of_sample(sample, trace, index=i) for sample in renderer.render(trace)]
    report = check_dataset(rows, tokenizer=tokenizer)
    assert {f.place.row for f in report.findings if f.code == "TM107"} == {2}


def test_half_a_surrogate_in_a_log_is_named_by_its_field(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text(
        '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "lone \\ud83d half"}]}\n'
    )
    from tracemask.check.config import Settings

    report = check_paths([str(log)], settings=Settings())
    text = json.dumps(report.to_json())
    assert "surrogate" in text and "messages[1].content" in text


def test_a_span_that_is_only_the_first_token_is_not_read_as_the_whole_row(real_tokenizer):
    tokenizer = load(real_tokenizer("qwen3"))
    found = told(Foreign([row([32, 91, 872, 4244], [1, 0, 0, 0])]), tokenizer)
    assert ("TM604", 0, 0) in found
    assert not any(code == "TM313" for code, _, _ in found)
