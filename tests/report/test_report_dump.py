"""The terminal dump: loses nothing without colour, drives no terminal."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_rows import make_row

from tracemask.check import check_dataset
from tracemask.core.finding import Finding, Place
from tracemask.core.vocab import AUTHOR_LETTER, Author
from tracemask.report.dump import View, dump, glyph, weight_label
from tracemask.report.glyphs import Speller, spell, visible

MARGIN = re.compile(r"^ *(\d+) ([A-Z?]) (\S+) *│")
LETTER_AUTHOR = {letter: author for author, letter in AUTHOR_LETTER.items()}


def parse_back(lines: list[str]) -> tuple[list[int], list[int], list[float]]:
    """ids, authors and weights of every token, from the plain text of a dump with ids and nothing folded."""
    ids: list[int] = []
    authors: list[int] = []
    weights: list[float] = []
    for text, below in zip(lines[1::2], lines[2::2], strict=True):
        found = MARGIN.match(text)
        assert found and "#│" in below
        assert int(found[1]) == len(ids)
        line_ids = [int(token) for token in below.split("#│")[1].split()]
        label = found[3]
        weight = 0.0 if label == "·" else 1.0 if label == "█" else float(label[1:])
        ids += line_ids
        authors += [int(LETTER_AUTHOR[found[2]])] * len(line_ids)
        weights += [weight] * len(line_ids)
    return ids, authors, weights


TEXTS = st.text(st.characters(codec="utf-8"), max_size=30)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from(list(Author)), TEXTS, st.sampled_from([0.0, 1.0, 0.25, -0.5])), max_size=6),
    st.integers(30, 160),
)
def test_a_dump_without_colour_gives_back_author_weight_and_id_of_every_token(small, pieces, width):
    row = make_row(small, [(author, text, False) for author, text, _ in pieces])
    stream = np.concatenate(
        [
            np.full(int((row["message"] == number).sum()), weight, np.float32)
            for number, (_, _, weight) in enumerate(pieces)
        ]
        or [np.zeros(0, np.float32)]
    )
    view = View(width=width, full=True, ids=True)
    lines = [line.plain for line in dump(row, small, weights={"rl": stream}, view=view)]
    ids, authors, weights = parse_back(lines)
    assert ids == row["token_ids"].tolist()
    assert authors == row["author"].tolist()
    assert weights == stream.tolist()


@given(st.text(max_size=80))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_text_can_drive_the_terminal(text):
    shown = visible(text)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)


def test_escape_sequences_are_spelled():
    assert spell(b"\x1b[31mred\x07") == "␛[31mred␇"
    assert visible("a\u202eb") == "a‹U+202E›b"
    assert spell(b"ok \xff\xfe") == "ok·\\xff\\xfe"


def test_a_character_over_several_tokens_appears_once_on_its_last(small):
    ids = small.encode("👍")
    assert len(ids) > 1
    assert Speller(small).spell(ids) == [""] * (len(ids) - 1) + ["👍"]


def test_a_character_cut_off_keeps_its_bytes(small):
    ids = small.encode("👍")[:-1]
    assert "".join(Speller(small).spell(ids)).startswith("\\xf0")


def test_an_id_outside_the_vocabulary_is_named_not_hidden(small):
    assert Speller(small).spell([small.size + 5]) == [f"⟦?{small.size + 5}⟧"]


def test_special_tokens_stand_in_brackets_and_literal_text_does_not(small):
    row = make_row(small, [(Author.RENDERER, "<|im_start|>user\n", False)])
    first = [line.plain for line in dump(row, small)][1]
    assert "⟦im_start⟧user⏎" in first


def test_a_long_environment_run_folds_to_one_line_that_says_how_long(small):
    row = make_row(small, [(Author.ENVIRONMENT, "line of output\n" * 400, False), (Author.POLICY, "done", True)])
    lines = [line.plain for line in dump(row, small)]
    assert len(lines) == 3
    size = int((row["author"] == Author.ENVIRONMENT).sum())
    assert f"environment {size:,} tokens, none in loss" in lines[1]


@pytest.mark.parametrize("text", ["line of output\n", "修复错误，", "👍🏽 "])
@pytest.mark.parametrize("width", [60, 80, 110])
def test_a_folded_line_fits_the_terminal(small, text, width):
    from rich.cells import cell_len

    row = make_row(small, [(Author.ENVIRONMENT, text * 200, False), (Author.POLICY, "done", True)])
    folded = [line.plain for line in dump(row, small, view=View(width=width))][1]
    assert "none in loss" in folded and folded.endswith("›")
    assert cell_len(folded) <= width


def test_environment_tokens_in_the_loss_are_never_folded(small):
    row = make_row(small, [(Author.ENVIRONMENT, "line of output\n" * 100, True)])
    assert len(list(dump(row, small))) > 50


def test_findings_point_at_their_token(small):
    row = make_row(small, [(Author.POLICY, "one two three four", True)])
    finding = Finding("TM305", "the stop is not trained", Place(row=0, token=2))
    lines = [line.plain for line in dump(row, small, view=View(findings=[finding]))]
    assert any("token 2" in line and "TM305 the stop is not trained" in line for line in lines)


def test_one_line_a_token_names_index_id_author_weight_and_logprob(small):
    row = make_row(small, [(Author.USER, "hi", False), (Author.POLICY, " there", True)])
    lines = [line.plain for line in dump(row, small, view=View(tokens=True))][1:]
    assert len(lines) == len(row)
    for index, line in enumerate(lines):
        assert line.split()[:2] == [str(index), str(int(row["token_ids"][index]))]
    assert "P █" in lines[-1]
    assert "-0.5000" in lines[-1]


@pytest.mark.parametrize(("weight", "mark"), [(1, "█"), (0.1, "▒"), (0, "·"), (-1, "▼"), (float("nan"), "?")])
def test_each_kind_of_weight_has_its_glyph(weight, mark):
    assert glyph(weight) == mark


def test_several_components_are_named_in_the_margin():
    assert weight_label((("rl", 1.0), ("ce", 0.0))) == "rl█"
    assert weight_label((("rl", 0.0), ("ce", 0.1))) == "ce▒0.1"
    assert weight_label((("rl", 0.0), ("ce", 0.0))) == "·"


def test_a_window_shows_only_the_neighbourhood_of_a_token(small):
    row = make_row(small, [(Author.ENVIRONMENT, "line of output\n" * 400, False)])
    lines = [line.plain for line in dump(row, small, view=View(at=100, around=5, ids=True))]
    shown = [int(token) for line in lines if "#│" in line for token in line.split("#│")[1].split()]
    assert shown == row["token_ids"][95:106].tolist()


def test_sampled_and_trained_ids_stand_side_by_side_where_they_differ(small):
    trained, sampled = small.encode("harbour"), small.encode("har") + small.encode("bour")
    assert trained != sampled
    row = make_row(small, [(Author.POLICY, "harbour", True)])
    row.columns["sampled_ids"] = np.array(sampled, np.int32)
    row.columns["mask"] = row["sampled"]
    found = [f for f in check_dataset([row], tokenizer=small).findings if f.code == "TM202"]
    text = "\n".join(line.plain for line in dump(row, small, view=View(findings=found)))
    same = next(k for k, (a, b) in enumerate(zip(trained, sampled, strict=False)) if a != b)
    for sign, name, ids in (("−", "trained", trained[same:]), ("+", "sampled", sampled[same:])):
        assert f"{sign}│{name} {Speller(small).text(ids)}  [{' '.join(map(str, ids))}]" in text


def test_marks_for_white_space_are_fainter_than_words(small):
    line = next(
        line for line in dump(make_row(small, [(Author.POLICY, "She leaves", True)]), small) if "leaves" in line.plain
    )
    faint = {line.plain[span.start : span.end] for span in line.spans if span.style == "dim" and span.start > 12}
    assert faint == {"·"}
