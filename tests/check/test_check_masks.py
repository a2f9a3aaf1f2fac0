"""Masks that are wrong as a whole or at the edges of turns, on the small tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
from check_make import SMALL, TALK, Foreign, Rows, changed, chat, foreign, ours

from tracemask.check.runner import check_dataset
from tracemask.core.vocab import Author
from tracemask.render.tokenizer import Tokenizer
from tracemask.store.row import Row


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.load(SMALL)


def clean(tokenizer, *, index=0, **scalars):
    talk = [TALK[0], ("user", f"When does the Orla leave Pier {index}?"), *TALK[2:]]
    return ours(tokenizer, chat(talk), index=index, **scalars)


def found(rows, tokenizer, *, at=None):
    """(code, row, token) of every error and warning."""
    report = check_dataset(rows, tokenizer=tokenizer)
    return {
        (finding.code, finding.place.row, finding.place.token)
        for group in report.groups
        if group.severity.value in "EW"
        for finding in group.examples
    }


def moved(flags, d):
    out = np.zeros_like(flags)
    if d > 0:
        out[d:] = flags[:-d]
    else:
        out[:d] = flags[-d:]
    return out


def starts(row):
    flags = row["sampled"]
    return np.flatnonzero(flags & ~np.concatenate([[False], flags[:-1]]))


def ends(row):
    flags = row["sampled"]
    return np.flatnonzero(flags & ~np.concatenate([flags[1:], [False]]))


def test_clean_rows_of_ours_and_of_others_have_no_error_and_no_warning(tokenizer):
    rows = [clean(tokenizer, index=i) for i in range(3)]
    assert found(Rows(rows), tokenizer) == set()
    for labels in (False, True):
        assert found(Foreign([foreign(row, labels=labels, logprobs=True) for row in rows]), tokenizer) == set()


@pytest.mark.parametrize("d", [-2, -1, 1, 2])
@pytest.mark.parametrize("kind", ["ours", "mask", "labels"])
def test_a_shifted_mask_is_one_finding_at_its_first_wrong_token(tokenizer, d, kind):
    row = clean(tokenizer)
    flags = moved(row["sampled"], d)
    first = int(starts(row)[0])
    if kind == "ours":
        rows = Rows([changed(row, sampled=flags, logprob=np.full(len(row), np.nan, np.float32))])
    elif kind == "mask":
        rows = Foreign([changed(foreign(row), mask=flags.astype(np.int8))])
    else:
        rows = Foreign([changed(foreign(row, labels=True), labels=np.where(flags, row["token_ids"], -100))])
    assert found(rows, tokenizer) == {("TM302", 0, first + d if d < 0 else first)}


def test_pre_shifted_labels_are_a_convention_and_not_a_shifted_mask(tokenizer):
    row = clean(tokenizer)
    labels = np.full(len(row), -100)
    labels[:-1] = np.where(row["sampled"], row["token_ids"], -100)[1:]
    rows = Foreign([changed(foreign(row, labels=True), labels=labels)])
    assert "TM302" not in {code for code, _, _ in found(rows, tokenizer)}


def test_an_untrained_stop_is_found_at_the_stop(tokenizer):
    row = clean(tokenizer)
    flags = row["sampled"].copy()
    stop = int(ends(row)[0])
    flags[stop] = False
    lp = row["logprob"].copy()
    assert found(Rows([changed(row, sampled=flags, logprob=lp)]), tokenizer) == {("TM305", 0, stop)}
    flags[ends(row)] = False
    rows = Foreign([changed(foreign(row), mask=flags.astype(np.int8))])
    assert found(rows, tokenizer) == {("TM305", 0, stop)}


def test_a_dropped_first_token_is_found_at_that_token(tokenizer):
    row = clean(tokenizer)
    flags = row["sampled"].copy()
    flags[starts(row)] = False
    assert found(Rows([changed(row, sampled=flags)]), tokenizer) == {("TM309", 0, int(starts(row)[0]))}


def test_the_newline_after_a_stop_in_the_loss_is_the_template_s_tail(tokenizer):
    row = clean(tokenizer)
    flags = row["sampled"].copy()
    flags[ends(row)[0] + 1] = True
    rows = Foreign([changed(foreign(row), mask=flags.astype(np.int8))])
    assert found(rows, tokenizer) == {("TM310", 0, int(ends(row)[0]) + 1)}


def test_trained_tool_output_is_found_at_its_first_token(tokenizer):
    row = clean(tokenizer)
    tool = np.flatnonzero(row["author"] == Author.ENVIRONMENT)
    flags = row["sampled"].copy()
    flags[tool] = True
    assert found(Rows([changed(row, sampled=flags)]), tokenizer) == {("TM306", 0, int(tool[0]))}
    assert found(Foreign([changed(foreign(row), mask=flags.astype(np.int8))]), tokenizer) == {
        ("TM306", 0, int(tool[0]))
    }


def test_a_trained_header_is_found_at_its_first_token(tokenizer):
    row = clean(tokenizer)
    first = int(starts(row)[0])
    flags = row["sampled"].copy()
    flags[first - 3 : first] = True
    assert found(Foreign([changed(foreign(row), mask=flags.astype(np.int8))]), tokenizer) == {("TM307", 0, first - 3)}


def test_an_inverted_mask_is_one_finding(tokenizer):
    row = clean(tokenizer)
    rows = Foreign([changed(foreign(row), mask=(~row["sampled"]).astype(np.int8))])
    assert found(rows, tokenizer) == {("TM308", 0, 0)}


def test_a_mask_that_runs_to_the_end_is_one_finding(tokenizer):
    row = clean(tokenizer)
    flags = np.arange(len(row)) >= starts(row)[0]
    rows = Foreign([changed(foreign(row), mask=flags.astype(np.int8))])
    assert {code for code, _, _ in found(rows, tokenizer)} == {"TM313"}


def test_a_row_without_loss_is_found_and_one_that_is_meant_so_is_not(tokenizer):
    row = clean(tokenizer)
    bare = changed(row, sampled=np.zeros(len(row), bool), logprob=np.full(len(row), np.nan, np.float32))
    assert found(Rows([bare]), tokenizer) == {("TM301", 0, 0)}
    meant = changed(bare)
    meant.scalars["trainable"] = False
    assert found(Rows([meant]), tokenizer) == set()


def test_a_row_masked_for_its_length_is_one_note_and_its_log_probs_are_none(tokenizer):
    """Overlong filtering, as DAPO and TRL do it: the mask is zero, the log-probs are still there."""
    rows = [foreign(clean(tokenizer, index=i), logprobs=True, truncated=i == 1) for i in range(3)]
    hidden = [changed(row, mask=row["mask"] * (row.index != 1)) for row in rows]
    assert {code for code, _, _ in found(Foreign(hidden), tokenizer)} == {"TM107"}
    report = check_dataset(Foreign(hidden), tokenizer=tokenizer)
    assert [(f.place.row, f.cause) for f in report.findings if f.code == "TM301"] == [(1, "truncated")]
    for row in hidden:
        row.scalars["truncated"] = False
    assert found(Foreign(hidden), tokenizer) == {("TM301", 1, 0)}
    every = [changed(row, mask=row["mask"] * 0) for row in rows]
    for row in every:
        row.scalars["truncated"] = True
    assert {code for code, _, _ in found(Foreign(every), tokenizer)} == {"TM107", "TM301"}


def test_a_length_mismatch_states_all_lengths(tokenizer):
    from tracemask.store.row import Row

    columns = {"token_ids": np.arange(100, 112), "mask": np.ones(11, np.int8), "logprob": np.full(11, -0.1)}
    report = check_dataset(Foreign([Row(0, columns)]), tokenizer=tokenizer)
    (finding,) = report.findings
    assert finding.code == "TM101"
    assert "12 ids" in finding.message and "mask 11" in finding.message and "logprob 11" in finding.message


def packed(rows, masks, **says):
    """Rows of ours as one row of another tool."""
    ids = np.concatenate([row["token_ids"] for row in rows])
    mask = np.concatenate(masks).astype(np.int8)
    return Foreign([Row(0, {"token_ids": ids, "mask": mask, **says}, {})])


def test_an_inverted_document_among_right_ones_is_found_at_its_first_trained_token(tokenizer):
    rows = [clean(tokenizer, index=i) for i in range(3)]
    masks = [rows[0]["sampled"], ~rows[1]["sampled"], rows[2]["sampled"]]
    masks[1][0] = False  # nothing predicts the first token of a document
    sizes = [len(row) for row in rows]
    report = check_dataset(packed(rows, masks, seq_lengths=np.array(sizes)), tokenizer=tokenizer)
    (finding,) = [each for each in report.findings if each.code == "TM308"]
    assert finding.place.token == sizes[0] + 1 and finding.message.endswith("are not, in 1 of 3 documents")
    unsaid = check_dataset(packed(rows, masks), tokenizer=tokenizer)
    assert not [each for each in unsaid.findings if each.code == "TM308"]  # the row as a whole is not inverted
    whole = check_dataset(packed(rows, [~row["sampled"] for row in rows]), tokenizer=tokenizer)
    assert [each.message for each in whole.findings if each.code == "TM308"] == [
        "the others' tokens are trained and the policy's are not"
    ]


@pytest.mark.parametrize("says", [True, False], ids=["boundaries", "none"])
def test_a_reply_cut_at_a_document_s_end_is_told_as_far_as_the_row_says_where_documents_end(tokenizer, says):
    rows = [clean(tokenizer, index=i) for i in range(2)]
    last = int(ends(rows[0])[-1])
    rows[0] = changed(rows[0], **{name: values[:last] for name, values in rows[0].columns.items()})
    more = {"seq_lengths": np.array([len(row) for row in rows])} if says else {}
    report = check_dataset(packed(rows, [row["sampled"] for row in rows], **more), tokenizer=tokenizer)
    said = {finding.code: finding.message for finding in report.findings if finding.place.token == last - 1}
    assert set(said) == ({"TM107"} if says else {"TM316"})
    unknown = "or a packed document ends there: no column says where documents begin"
    assert says or unknown in said["TM316"]


def test_a_lost_stop_inside_a_conversation_is_told_without_a_doubt(tokenizer):
    row = clean(tokenizer)
    first = int(ends(row)[0])
    keep = np.arange(len(row)) != first
    lost = changed(foreign(row), **{name: values[keep] for name, values in foreign(row).columns.items()})
    report = check_dataset(Foreign([lost]), tokenizer=tokenizer)
    assert [f.message for f in report.findings if f.code == "TM316"] == [
        "1 trained turn without a stop before the next speaker"
    ]
