"""Each rule against its own planted defect, on tool-using rollouts: exactly that, at the exact row and token."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from check_defects import PLANTERS
from check_make import SMALL, Foreign, Rows, foreign
from check_rollouts import Clean, clean

from tracemask.check.rule import all_rules
from tracemask.check.runner import check_dataset
from tracemask.render.tokenizer import Tokenizer

# Rules whose defect is not in rows: each has its own test.
ELSEWHERE = {
    "TM103", "TM104", "TM105", "TM108", "TM110", "TM111", "TM112", "TM113", "TM114", "TM115",  # traces and rendering
    "TM116",
    "TM503", "TM506", "TM507", "TM508",  # files
}  # fmt: skip


@cache
def dataset(name: str, folder: Path, template: str | None) -> Clean:
    return clean(Tokenizer.load(folder), template=template)


@pytest.fixture(
    params=["small", pytest.param("qwen3", marks=pytest.mark.real), pytest.param("llama3_1", marks=pytest.mark.real)]
)
def data(request) -> Clean:
    if request.param == "small":
        return dataset("small", SMALL, None)
    folder = request.getfixturevalue("real_tokenizer")(request.param)
    template = request.getfixturevalue("real_templates")["llama3_1"] if request.param == "llama3_1" else None
    return dataset(request.param, folder, template)


def found(rows, data, *, settings=None, template=None):
    report = check_dataset(
        rows, tokenizer=data.renderer.tokenizer, template=template or data.renderer.template, settings=settings
    )
    return {
        (finding.code, finding.place.row, finding.place.token) for group in report.groups for finding in group.examples
    }


def test_every_rule_has_a_planted_defect_or_a_test_of_its_own():
    assert set(PLANTERS) | ELSEWHERE == set(all_rules())
    assert not set(PLANTERS) & ELSEWHERE


@pytest.mark.parametrize("code", sorted(PLANTERS))
def test_exactly_the_planted_defect_is_found(data, code):
    planted = PLANTERS[code](data)
    if planted is None:
        pytest.skip("cannot occur with this tokenizer or template")
    before = found(planted.good, data, settings=planted.settings)
    after = found(planted.bad, data, settings=planted.settings, template=planted.template)
    assert not before & planted.expected
    if code == "TM602":  # the good data are fewer rows
        assert {key for key in after if key[0] == code} == planted.expected
        return
    assert after - before - planted.gone == planted.expected


def severities(rows, data):
    report = check_dataset(rows, tokenizer=data.renderer.tokenizer, template=data.renderer.template)
    return {(finding.code, finding.place.row) for group in report.groups if group.severity.value in "EW"
            for finding in group.examples}  # fmt: skip


@pytest.mark.parametrize("form", ["ours", "mask", "labels"])
def test_clean_data_have_no_error_and_no_warning_but_the_truncations(data, form):
    rows = (
        Rows(data.rows)
        if form == "ours"
        else Foreign([foreign(row, labels=form == "labels", logprobs=True) for row in data.rows])
    )
    assert len(data.cut) == 10
    assert severities(rows, data) == {("TM107", row) for row in data.cut}


def test_findings_do_not_depend_on_how_rows_are_cut_into_blocks():
    data = dataset("small", SMALL, None)
    for code, plant in sorted(PLANTERS.items()):
        planted = plant(data)
        if planted is None:
            continue
        cut = replace(planted.settings, block_tokens=4000)
        whole = found(planted.bad, data, settings=planted.settings, template=planted.template)
        assert found(planted.bad, data, settings=cut, template=planted.template) == whole, code
