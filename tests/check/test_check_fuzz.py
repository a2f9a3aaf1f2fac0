"""Any rows at all: check reports, it never raises, and places lie inside their rows."""

from __future__ import annotations

import numpy as np
from check_make import SMALL, Foreign, Rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tracemask.check.fix import fix_dataset
from tracemask.check.formats import FORMATS
from tracemask.check.lens import Lens
from tracemask.check.runner import check_dataset
from tracemask.render.tokenizer import Tokenizer
from tracemask.store.row import Row

TOKENIZER = Tokenizer.load(SMALL)
MARKS = [2040, 2041, 2042, 2043, 2044, 2045, 2046, 2047, 486, 429, 198, 457]
IDS = st.one_of(st.sampled_from(MARKS), st.integers(0, 2047), st.integers(-3, 2100))


@st.composite
def rows(draw, ours):
    out = []
    for index in range(draw(st.integers(1, 4))):
        ids = draw(st.lists(IDS, max_size=40))
        n = len(ids)
        flags = st.lists(st.booleans(), min_size=n, max_size=n)
        numbers = st.lists(st.sampled_from([np.nan, 0.0, -1.5, -np.inf, 1.0, 0.3]), min_size=n, max_size=n)
        columns = {"token_ids": np.array(ids, np.int32)}
        if ours:
            for name, top in (("author", 9), ("role", 6), ("part", 9), ("origin", 8)):
                columns[name] = np.array(draw(st.lists(st.integers(0, top), min_size=n, max_size=n)), np.uint8)
            columns["message"] = np.sort(np.array(draw(st.lists(st.integers(-1, 4), min_size=n, max_size=n)), np.int32))
            columns["sampled"] = np.array(draw(flags), bool)
            columns["logprob"] = np.array(draw(numbers), np.float32)
            columns["score_logprob"] = np.array(draw(numbers), np.float32)
            columns["weight.rl"] = np.array(draw(numbers), np.float32)
            columns["denominator.rl"] = np.array(draw(numbers), np.float64)
        else:
            kind = draw(st.sampled_from(["mask", "labels"]))
            short = draw(st.sampled_from([0, 0, 0, 1]))
            values = draw(flags) if kind == "mask" else draw(st.lists(IDS | st.just(-100), min_size=n, max_size=n))
            columns[kind] = np.array(values, np.int64)[: max(n - short, 0)]
            columns["position_ids"] = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.int64)
            columns["attention_mask"] = np.array(draw(flags), np.int64)
        scalars = {
            "trace_id": draw(st.sampled_from([None, "a", "b"])), "group_id": draw(st.sampled_from([None, "g", 1])),
            "reward": draw(st.sampled_from([None, 0.0, 1.0, float("nan")])),
            "advantage": draw(st.sampled_from([None, 0.5])),
            "truncated": draw(st.booleans()), "fork_row": draw(st.sampled_from([None, 0])),
            "fork_position": draw(st.sampled_from([None, 0, 3, 99])), "stop": draw(st.sampled_from([None, "length"])),
            "branch": index, "fidelity": draw(st.sampled_from([None, "messages", "exact"])),
        }  # fmt: skip
        out.append(Row(index, columns, scalars))
    return Rows(out) if ours else Foreign(out)


CALM = settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


@CALM
@given(st.booleans().flatmap(lambda ours: rows(ours)))
def test_any_rows_give_a_report_with_places_inside_the_rows(data):
    report = check_dataset(data, tokenizer=TOKENIZER)
    for finding in report.findings:
        row, token = finding.place.row, finding.place.token
        assert row is None or 0 <= row < len(data)
        assert token is None or row is None or 0 <= token <= max(len(data[row]), 1)
    for name in FORMATS:
        FORMATS[name](report)


@CALM
@given(st.booleans().flatmap(lambda ours: rows(ours)))
def test_any_rows_can_be_repaired_without_an_error_and_ids_never_change(data):
    fixer = fix_dataset(data, tokenizer=TOKENIZER, unsafe=True)
    for row in data:
        fixed = fixer(row)
        assert fixed is None or np.array_equal(fixed["token_ids"], row["token_ids"])


@settings(max_examples=80, derandomize=True, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_a_run_is_canonical_exactly_where_the_tokenizer_writes_it_so(text):
    lens, own = Lens(TOKENIZER), TOKENIZER.plain_batch([text])[0]
    bytewise = [TOKENIZER.id_table.index(bytes([byte])) for byte in text.encode()]
    for ids in (own, bytewise):
        flat = np.array(ids, np.int32)
        raw, offsets = lens.bytes_of(flat)
        edges = np.array([0, len(ids)] if ids else [], np.int64)
        assert (not lens.noncanonical(flat, raw, offsets, edges[:1], edges[1:])) is (ids == own)
