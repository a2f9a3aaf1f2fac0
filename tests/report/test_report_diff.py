"""Two renderings, aligned."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from report_rows import make_row

from tracemask.core.vocab import Author
from tracemask.report.diff import align, compare, lines
from tracemask.store.row import Row

IDS = st.lists(st.integers(0, 5), max_size=30)


@given(IDS, IDS)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_an_alignment_covers_both_sequences_once_and_equal_parts_are_equal(a, b):
    left, right = np.array(a, np.int32), np.array(b, np.int32)
    at = bt = 0
    for tag, a0, a1, b0, b1 in align(left, right):
        assert (a0, b0) == (at, bt)
        if tag == "equal":
            assert left[a0:a1].tolist() == right[b0:b1].tolist()
        at, bt = a1, b1
    assert (at, bt) == (len(a), len(b))


def test_equal_rows_have_no_changes(small):
    row = make_row(small, [(Author.POLICY, "the same", True)])
    assert compare(row, make_row(small, [(Author.POLICY, "the same", True)])) == []


def test_a_changed_author_and_its_weight_are_named_at_their_tokens(small):
    a = make_row(small, [(Author.USER, "question", False), (Author.POLICY, " answer", True)])
    b = make_row(small, [(Author.USER, "question", False), (Author.ENVIRONMENT, " answer", False)])
    start = int((a["message"] == 0).sum())
    changes = compare(a, b)
    assert [(c.kind, c.a_start, c.a_end, c.detail) for c in changes] == [
        ("author", start, len(a), "policy → environment"),
        ("weight", start, len(a), "sampled 1 → 0"),
    ]


def test_another_tokenization_of_the_same_text_is_shown_with_both_ids(small):
    a = make_row(small, [(Author.POLICY, "one harbour two", True)])
    b = make_row(
        small, [(Author.POLICY, "one", True), (Author.POLICY, " har", True), (Author.POLICY, "bour two", True)]
    )
    changes = [change for change in compare(a, b) if change.kind == "ids"]
    assert changes
    text = "\n".join(line.plain for line in lines(a, b, changes, small))
    first = changes[0]
    assert " ".join(map(str, a["token_ids"][first.a_start : first.a_end].tolist())) in text
    assert " ".join(map(str, b["token_ids"][first.b_start : first.b_end].tolist())) in text


def test_the_same_loss_under_another_name_is_no_difference(small):
    a = make_row(small, [(Author.USER, "question", False), (Author.POLICY, " answer", True)])
    labels = np.where(a["sampled"], a["token_ids"], -100)
    exported = Row(0, {"token_ids": a["token_ids"], "labels": labels})
    assert compare(a, exported) == []
    labels = labels.copy()
    labels[0] = a["token_ids"][0]
    (change,) = compare(a, Row(0, {"token_ids": a["token_ids"], "labels": labels}))
    assert (change.kind, change.a_start, change.a_end, change.detail) == ("weight", 0, 1, "sampled/labels 0 → 1")
