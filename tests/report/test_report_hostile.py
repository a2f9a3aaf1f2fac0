"""What a dataset may hold and must not do: drive a terminal, break the page, or stop a view with a traceback."""

from __future__ import annotations

import json
import re
import time
import unicodedata

import numpy as np
import pytest
from report_rows import make_row

from tracemask.core.vocab import Author
from tracemask.recipe import Recipe
from tracemask.report.diff import align, compare
from tracemask.report.dump import View, dump
from tracemask.report.explain import explain
from tracemask.report.glyphs import Speller, plain, visible
from tracemask.report.html import page
from tracemask.report.page import Page

BIDI = "\u202e\u2066\u200f"


def data_of(html: str) -> dict:
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', html, re.S)
    assert found
    return json.loads(found[1])


def two(small, **scalars):
    return make_row(small, [(Author.USER, "one two", False), (Author.POLICY, " three", True)], **scalars)


def test_every_blank_and_every_format_character_without_a_glyph_is_spelled():
    named = {"\u0600", "\u0601", "\u0602", "\u0603", "\u0604", "\u0605", "\u06dd", "\u0890", "\u0891", "\u08e2"}
    drawn = named | {"\U000110bd", "\U000110cd"} | {chr(code) for code in range(0x13430, 0x13440)}  # signs with a shape
    for code in range(0x110000):
        character = chr(code)
        blank = unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc", "Cf", "Cs") and character not in drawn
        if blank or character in "\u2800\u3164\ufffe\uffff":
            assert visible(character) != character, hex(code)


@pytest.mark.parametrize("marks", [4, 5, 300])
def test_marks_piled_on_one_letter_do_not_hide_other_lines(small, marks):
    """In one text and over tokens, of which each holds a part of a mark; what writing needs stays as it is."""
    text = "x" + "\u0301" * marks + "y"
    spelled = "x" + "\u0301" * 4 + "‹U+0301›" * (marks - 4) + "y"
    assert visible(text) == spelled
    assert Speller(small).text(small.plain_batch([text])[0]) == spelled
    row = make_row(small, [(Author.USER, "one", False), (Author.POLICY, text, True)])
    assert "\u0301" * 5 not in "".join(line.plain for line in dump(row, small)) + page(Page("t", small).data([row]))


def test_a_column_name_cannot_drive_the_terminal_or_the_page(small):
    row = two(small)
    row.columns[f"weight.\x1b[31m{BIDI}</script>"] = row["sampled"].astype(np.float32)
    row.columns["weight.b"] = row["sampled"].astype(np.float32)
    text = "".join(line.plain for line in dump(row, small))
    html = page(Page("t", small).data([row]))
    assert not set(text + html) & {"\x1b", *BIDI}
    assert html.count("</script>") == 2
    other = two(small)
    other.columns["weight.b"] = np.zeros(len(other), np.float32)
    assert not set("".join(change.detail for change in compare(row, other))) & {"\x1b", *BIDI}


def test_a_title_and_facts_are_one_harmless_line(small):
    html = page(Page(f"a\n\x1b{BIDI}\udcff", small).data([two(small)], facts=[f"recipe {BIDI}\udcff"]))
    html.encode("utf-8")
    assert not set(html) & set(BIDI)
    assert "\n" not in data_of(html)["title"]


def test_weights_that_are_no_numbers_are_shown_as_such(small):
    row = two(small)
    stream = np.zeros(len(row), np.float32)
    stream[-2:] = np.nan, np.inf
    row.columns["weight.rl"] = stream
    data = data_of(page(Page("t", small, scales={"sum": np.ones(1)}).data([row])))
    assert [run[-1] for run in data["rows"][0]["runs"]][-2:] == [None, None]
    assert sum(count[3] for count in data["counts"]) == 2
    assert all(value == 0 for value in data["totals"]["sum"].values())
    assert "?nan" in "".join(line.plain for line in dump(row, small))
    assert compare(row, row) == []


def test_a_reward_of_zero_is_a_fact(small):
    facts = data_of(page(Page("t", small).data([two(small, reward=0.0, drift=0, truncated=False)])))["rows"][0]["facts"]
    assert {"reward 0.0", "drift 0"} <= set(facts)
    assert not [fact for fact in facts if fact.startswith("truncated")]


def test_an_id_of_zero_is_an_id(small):
    assert data_of(page(Page("t", small).data([two(small, id=0)])))["rows"][0]["id"] == "0"


@pytest.mark.parametrize("name", ["labels", "author", "logprob", "sampled", "weight.rl"])
def test_a_column_of_another_length_is_named_and_left_out(small, name):
    row = two(small)
    row.columns[name] = np.ones(len(row) - 1, row[name].dtype if name in row.columns else np.float32)
    for view in (View(ids=True, logprobs=True), View(tokens=True)):
        lines = [line.plain for line in dump(row, small, view=view)]
        assert f"TM101 {name} has {len(row) - 1} values: left out" in lines[0]
    facts = data_of(page(Page("t", small).data([row])))["rows"][0]["facts"]
    assert f"TM101 {name} has {len(row) - 1} values: left out" in facts
    compare(row, row)


@pytest.mark.parametrize(
    "codes", [np.array([9, 200, 255], np.uint8), np.array([-5, 10**6, 3]), np.array([0.5, np.nan, 1])]
)
def test_an_author_code_without_a_meaning_is_an_unknown_author(small, codes):
    row = two(small)
    row.columns["author"] = np.resize(codes, len(row))
    row.columns["role"] = row.columns["part"] = row.columns["author"]
    assert " ? " in [line.plain for line in dump(row, small)][1]
    data = data_of(page(Page("t", small).data([row])))
    assert all(run[2] < len(data["authors"]) and run[3] < len(data["roles"]) for run in data["rows"][0]["runs"])
    assert all(count[0] < len(data["authors"]) for count in data["counts"])
    assert compare(row, two(small))


def test_log_probs_without_bounds_are_packed_without_a_warning(small):
    row = two(small)
    row.columns["logprob"][-3:] = np.inf, -np.inf, np.nan
    assert data_of(page(Page("t", small).data([row])))["rows"][0]["lpRuns"]


def test_an_empty_row_and_no_row_at_all_make_a_page(small):
    assert data_of(page(Page("t", small).data([])))["rows"] == []
    empty = make_row(small, [(Author.USER, "", False)])
    empty.columns = {name: values[:0] for name, values in empty.columns.items()}
    assert data_of(page(Page("t", small).data([empty])))["rows"][0]["runs"] == []


def test_an_id_cannot_forge_a_line_of_an_explanation(small):
    rows = [two(small, id="x", trace_id=f"a\n{BIDI}\x1b forged", reward=1e30)]
    found = explain(Recipe.load("reinforce"), rows, {"trace_id": [rows[0].scalars["trace_id"]], "reward": [1e30]})
    for line in found.lines():
        assert not set(line) & {"\n", "\x1b", *BIDI}
        assert len(line) < 200


def test_repetitive_rows_are_compared_in_bounded_time():
    a = np.array([9] + [1, 2] * 1900 + [8])
    b = np.array([7] + [2, 2, 1] * 1300 + [6])
    started = time.perf_counter()
    ends = list(align(a, b))[-1]
    assert (ends[2], ends[4]) == (len(a), len(b))
    assert time.perf_counter() - started < 20


def test_few_edits_in_a_long_row_are_found_one_by_one():
    a = np.arange(200_000) % 977
    b = np.delete(a.copy(), [50_000, 150_000])
    changed = [op for op in align(a, b) if op[0] == "replace"]
    assert [(op[2] - op[1], op[4] - op[3]) for op in changed] == [(1, 0), (1, 0)]


def test_plain_keeps_spaces_and_nothing_else_that_cannot_be_seen():
    assert plain("a b\n\u00a0c") == "a b⏎‹U+00A0›c"
