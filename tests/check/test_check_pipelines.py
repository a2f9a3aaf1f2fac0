"""What transformers and trl themselves write is clean, but for what their templates really do; defects are found."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from check_make import Foreign, foreign
from check_pipelines import DEFECTS, every_form, packed, padded, rendered, spans, supervised, trimmed, write
from check_rollouts import clean

from tracemask.check.config import Settings
from tracemask.check.finding import Severity
from tracemask.check.runner import check_dataset
from tracemask.check.sources import check_paths
from tracemask.render.tokenizer import Tokenizer
from tracemask.store.row import Row

pytestmark = pytest.mark.real

# tokenizer, trl's training template, the plain template, and what that training template really does wrong:
# TM310 it trains the newline behind the stop, TM307 it trains a part of the header.
SETUPS = {
    "qwen3": ("qwen3", "qwen3_training", "qwen3", {"TM310"}),
    "qwen2.5": ("qwen3", "qwen2_5_training", "qwen2_5", {"TM307", "TM310"}),
    "llama3": ("llama3_1", "llama3_training", "llama3", set()),
    "deepseek": ("deepseek_v3", "deepseekv3_training", "deepseekv3", {"TM307"}),
    "gemma3": ("gemma3", "gemma3_training", "gemma3", {"TM310"}),
    "gptoss": ("gptoss", "gptoss_training", "gptoss", {"TM307"}),
}
# DeepSeek's template prints no opener before a second call; Gemma's refuses tools.
TOOLS = {"qwen3": 3, "qwen2.5": 3, "llama3": 3, "deepseek": 1, "gptoss": 3}


@cache
def loaded(folder) -> Tokenizer:
    return Tokenizer.load(folder)


def codes(path: str, tokenizer: Tokenizer, template: str, **settings) -> set[str]:
    report = check_paths([path], settings=Settings(tokenizer=tokenizer, template=template, **settings))  # type: ignore[arg-type]
    return {group.rule.code for group in report.groups if group.severity is not Severity.INFO}


@pytest.mark.parametrize("tools", [False, True], ids=["chat", "tools"])
@pytest.mark.parametrize("name", sorted(SETUPS))
def test_clean_data_of_other_pipelines_have_only_what_is_there(name, tools, real_tokenizer, real_templates, tmp_path):
    folder, training, plain, there = SETUPS[name]
    if tools and name not in TOOLS:
        pytest.skip("the template has no tools")
    where = real_tokenizer(folder)
    rows, pad = rendered(where, real_templates[training], tools=tools, steps=TOOLS.get(name, 3) if tools else 3)
    template = tmp_path / "plain.jinja"
    template.write_text(real_templates[plain], encoding="utf-8")
    wrong = {}
    for form, records in every_form(rows, pad).items():
        found = codes(write(tmp_path / "d.jsonl", records), loaded(where), str(template))
        if found != there:
            wrong[form] = found ^ there
    assert not wrong


FORMS = ("assistant_masks", "labels", "padded right", "padded left", "padded, no attention", "packed, position_ids")


@pytest.fixture(scope="module", params=["qwen3", "llama3"])
def chats(request, real_tokenizer, real_templates, tmp_path_factory):
    """Chats whose masks are right, their tokenizer, template and pad id."""
    folder, training, plain, _ = SETUPS[request.param]
    rows, pad = rendered(real_tokenizer(folder), real_templates[training], tools=False, steps=3)
    tokenizer = loaded(real_tokenizer(folder))
    template = tmp_path_factory.mktemp("t") / "plain.jinja"
    template.write_text(real_templates[plain], encoding="utf-8")
    return trimmed(rows, {tokenizer.plain_batch(["\n"])[0][0]}), pad, tokenizer, str(template)


@pytest.mark.parametrize("defect", sorted(DEFECTS))
def test_a_defect_is_found_in_every_form_of_the_data(chats, defect, tmp_path):
    rows, pad, tokenizer, template = chats
    change, code = DEFECTS[defect]
    bad = [change(ids, mask) if len(spans(mask)) > 1 else (ids, mask) for ids, mask in rows]
    forms = {**supervised(bad), **padded(bad, pad), **packed(bad)}
    missed = [
        form for form in FORMS if code not in codes(write(tmp_path / "d.jsonl", forms[form]), tokenizer, template)
    ]
    assert not missed


@pytest.mark.parametrize("turns", [1, 2])
def test_a_first_token_not_trained_is_found_in_a_turn_that_ends_with_its_row(turns, chats, tmp_path):
    """Llama's template writes nothing behind the last stop; a right mask there is clean."""
    rows, _, tokenizer, template = chats
    made, right = [], []
    for ids, mask in rows:
        end = spans(mask)[min(turns, len(spans(mask))) - 1][1]
        ids, mask = ids[:end], mask[:end]
        right.append((ids, mask))
        start, _ = spans(mask)[-1]
        made.append((ids, [int(on and i != start) for i, on in enumerate(mask)]))
    for form in ("labels", "padded right", "padded left"):
        for wanted, data in ((set(), right), ({"TM309"}, made)):
            records = {**supervised(data), **padded(data, chats[1])}[form]
            assert codes(write(tmp_path / "d.jsonl", records), tokenizer, template) == wanted, form


def test_a_shift_of_one_packed_document_is_found_among_right_ones(chats, tmp_path):
    rows, _, tokenizer, template = chats
    at = next(i for i, (_, mask) in enumerate(rows) if len(spans(mask)) == 3)
    bad = [DEFECTS["shifted by +1"][0](*row) if i == at else row for i, row in enumerate(rows)]
    for form, records in packed(bad).items():
        assert "TM302" in codes(write(tmp_path / "d.jsonl", records), tokenizer, template), form


def test_a_cut_reply_behind_which_the_stop_id_pads_is_cut_off_and_has_no_untrained_stop(chats, tmp_path):
    rows, _, tokenizer, template = chats
    cut = [DEFECTS["cut off"][0](*row) for row in rows]
    stop = rows[0][0][spans(rows[0][1])[0][1] - 1]
    records = padded(cut, stop)["padded right"]
    assert codes(write(tmp_path / "d.jsonl", records), tokenizer, template) == {"TM107"}


def test_trained_padding_of_an_undeclared_pad_id_is_found(chats, tmp_path):
    rows, _, tokenizer, template = chats
    stop = rows[0][0][spans(rows[0][1])[0][1] - 1]
    for form in ("padded right", "padded left"):
        records = padded(rows, stop)[form]
        for record in records:
            hidden = record.pop("attention_mask")
            record["labels"] = [t if not on else x for t, x, on in zip(record["input_ids"], record["labels"], hidden)]
        assert "TM312" in codes(write(tmp_path / "d.jsonl", records), tokenizer, template), form


@pytest.mark.parametrize("column", ["seq_lengths", "cu_seqlens", "seq_idx", "attention_mask", "position_ids"])
def test_a_trained_first_token_of_a_packed_document_is_found_by_any_column_of_boundaries(chats, column, tmp_path):
    rows, _, tokenizer, template = chats
    records = packed(rows)[f"packed, {column}"]
    start = len(rows[0][0])
    records[0]["labels"][start] = records[0]["input_ids"][start]
    report = check_paths(
        [write(tmp_path / "d.jsonl", records)],
        settings=Settings(tokenizer=tokenizer, template=template, select=("TM504",)),  # type: ignore[arg-type]
    )
    assert [(f.place.row, f.place.token, f.cause) for f in report.findings] == [(0, start, "first label")]


def test_lengths_that_do_not_fill_the_row_and_columns_that_disagree_are_found(chats, tmp_path):
    rows, _, tokenizer, template = chats
    records = packed(rows)["packed, seq_lengths"]
    records[0]["seq_lengths"][-1] -= 1
    n = len(records[1]["input_ids"])
    records[1]["position_ids"] = list(range(n))
    report = check_paths(
        [write(tmp_path / "d.jsonl", records)],
        settings=Settings(tokenizer=tokenizer, template=template, select=("TM504",)),  # type: ignore[arg-type]
    )
    assert {(f.place.row, f.cause) for f in report.findings} == {(0, "lengths"), (1, "columns disagree")}


def test_one_odd_stretch_or_one_broken_byte_is_no_other_tokenizer(chats, tmp_path):
    rows, _, tokenizer, template = chats
    single = {raw: i for i, raw in enumerate(tokenizer.id_table) if len(raw) == 1 and i not in tokenizer.added}
    records = []
    for ids, mask in rows:
        start, end = spans(mask)[-1]
        odd = [single[bytes([b])] for b in b"timetables"]
        records.append({"input_ids": [*ids[:start], *odd, single[b"\xff"], *ids[start:]],
                        "loss_mask": [*mask[:start], *([1] * (len(odd) + 1)), *mask[start:]]})  # fmt: skip
    assert "TM205" not in codes(write(tmp_path / "d.jsonl", records), tokenizer, template)


@pytest.mark.parametrize("other", ["deepseek_v3", "gemma3", "gptoss"])
def test_ids_of_another_tokenizer_are_told_in_nearly_every_row(chats, other, real_tokenizer, tmp_path):
    rows, _, tokenizer, _ = chats
    theirs = loaded(real_tokenizer(other))
    texts = [tokenizer.decode_bytes(ids).decode("utf-8", "replace") for ids, _ in rows]
    long = ["\n".join(texts[i:] + texts[:i]) for i in range(8)]
    records = [{"input_ids": theirs.plain_batch([text])[0]} for text in long]
    report = check_paths(
        [write(tmp_path / "d.jsonl", records)],
        settings=Settings(tokenizer=tokenizer, select=("TM205",)),  # type: ignore[arg-type]
    )
    assert sum(group.rows for group in report.groups) == len(records)


def test_tool_loops_encoded_piece_by_piece_are_no_other_tokenizer(real_tokenizer, real_templates):
    """As harnesses do that append ids: tags and results apart, which merge where they are encoded at once."""
    tokenizer = loaded(real_tokenizer("qwen3"))
    pieces = [
        "<|im_start|>assistant\n", "Let me look.\n\n", "<tool_call>\n", '{"name": "board", "arguments": {"pier": 7}}',
        "\n</tool_call>", "<|im_end|>\n", "<|im_start|>user\n", "<tool_response>\n", "| a | b |\n|---|---|\n",
        "\n</tool_response>", "<|im_end|>\n",
    ] * 4  # fmt: skip
    ids = [token for piece in pieces for token in tokenizer.encode(piece, control="ids")]
    assert ids != list(tokenizer.encode("".join(pieces), control="ids"))
    assert of_ids(ids, tokenizer, real_templates["qwen3"]) == {"TM202", "TM203"}


def test_a_token_with_the_end_of_a_character_and_a_stray_byte_is_read(real_tokenizer, real_templates):
    tokenizer = loaded(real_tokenizer("qwen3"))
    table = {raw: token for token, raw in enumerate(tokenizer.id_table)}
    stray = next(raw for raw in table if len(raw) == 2 and all(0x80 <= byte < 0xC0 for byte in raw))
    head = [table[bytes([byte])] for byte in (b"\xe7" + stray[:1])]
    words = tokenizer.plain_batch(["some words in front"])[0]
    assert of_ids([*words, *head, table[stray], *words], tokenizer, real_templates["qwen3"]) == {"TM213"}


def of_ids(ids: list[int], tokenizer: Tokenizer, template: str) -> set[str]:
    """The codes of a row of ids alone."""
    rows = Foreign([Row(0, {"token_ids": np.array(ids, np.int32)}, {})])
    report = check_dataset(rows, tokenizer=tokenizer, template=template)
    return {group.rule.code for group in report.groups}


@pytest.mark.parametrize("name", ["deepseek", "gptoss"])
@pytest.mark.parametrize("labelled", [True, False])
def test_tool_loops_of_templates_with_odd_turns_have_no_error_as_another_tool_s_rows(
    name, labelled, real_tokenizer, real_templates
):
    folder, _, plain, _ = SETUPS[name]
    data = clean(loaded(real_tokenizer(folder)), template=real_templates[plain], n=20)
    rows = Foreign(foreign(row, labels=labelled) for row in data.rows)
    report = check_dataset(rows, tokenizer=data.renderer.tokenizer, template=data.renderer.template)
    assert {group.rule.code for group in report.groups if group.severity is Severity.ERROR} == set()
