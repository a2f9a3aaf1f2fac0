"""Repairs: a planted defect, the repair, and a clean report; nothing in place, unsafe ones only on request."""

from __future__ import annotations

import base64
import datetime
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from check_defects import PLANTERS
from check_make import SMALL, Foreign, Rows, foreign
from check_rollouts import clean
from typer.testing import CliRunner

from tracemask.check.fix import FIXES, fix_dataset
from tracemask.check.runner import check_dataset
from tracemask.render.tokenizer import Tokenizer
from tracemask.store.reader import open_dataset
from tracemask_cli.main import app


@pytest.fixture(scope="module")
def data():
    return clean(Tokenizer.load(SMALL))


def repaired(planted, data, **options):
    tools = {"tokenizer": data.renderer.tokenizer, "template": planted.template or data.renderer.template}
    fixer = fix_dataset(planted.bad, **tools, **options)
    kept = [row for row in (fixer(row) for row in planted.bad) if row is not None]
    kind = type(planted.bad)
    return fixer, kind(kept), tools


def errors(rows, tools):
    report = check_dataset(rows, **tools)
    return {(f.code, f.place.row) for g in report.groups if g.severity.value in "EW" for f in g.examples}


def test_every_repair_is_of_a_rule_that_exists():
    from tracemask.check.rule import all_rules

    assert {fix.code for fix in FIXES} <= set(all_rules())


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.code)
def test_a_repair_takes_its_own_defect_away(data, fix):
    planted = PLANTERS[fix.code](data)
    if planted is None:
        pytest.skip("cannot occur with this template")
    fixer, rows, tools = repaired(planted, data, codes={fix.code}, unsafe=not fix.safe)
    assert fixer.changes and {change.code for change in fixer.changes} == {fix.code}
    assert not {key for key in errors(rows, tools) if key[0] == fix.code}


@pytest.mark.parametrize("code", ["TM302", "TM305", "TM309", "TM310", "TM312"])
def test_a_repaired_mask_is_the_clean_mask(data, code):
    planted = PLANTERS[code](data)
    _, rows, _ = repaired(planted, data, unsafe=True)
    name = "mask" if isinstance(planted.good, Foreign) else "sampled"
    for good, row in zip(planted.good, rows, strict=True):
        assert np.array_equal(good[name].astype(bool), row[name].astype(bool))


def test_unsafe_repairs_wait_for_a_request(data):
    planted = PLANTERS["TM302"](data)
    fixer, _, _ = repaired(planted, data)
    assert fixer.changes == []


def test_clean_rows_are_given_back_as_they_are(data):
    fixer = fix_dataset(
        Rows(data.rows), tokenizer=data.renderer.tokenizer, template=data.renderer.template, unsafe=True
    )
    assert all(fixer(row) is row for row in data.rows)


def run(*arguments):
    from typer.testing import CliRunner

    from tracemask_cli.main import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_fix_writes_new_shards_and_leaves_the_old_ones(data, tmp_path):
    from tracemask.store.commit import write_dataset
    from tracemask.store.schema import make_metadata

    planted = PLANTERS["TM305"](data)
    write_dataset(str(tmp_path / "a"), planted.bad, metadata=make_metadata(), rows_per_shard=100)
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    diff = run("fix", tmp_path / "a", "-t", SMALL, "--diff")
    assert diff.exit_code == 1 and "row 7: sampled, 1 tokens" in diff.stdout
    done = run("fix", tmp_path / "a", "-t", SMALL, "-o", tmp_path / "b")
    assert done.exit_code == 0 and "50 rows written" in done.stdout
    assert before == {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert run("check", tmp_path / "a", "-t", SMALL, "--select", "TM305").exit_code == 1
    assert run("check", tmp_path / "b", "-t", SMALL, "--select", "TM305").exit_code == 0


def test_fix_writes_other_tools_data_as_json_lines(data, tmp_path):
    planted = PLANTERS["TM303"](data)
    file = tmp_path / "d.jsonl"
    with open(file, "w") as out:
        for row in planted.bad:
            out.write(json.dumps({"input_ids": row["token_ids"].tolist(), "labels": row["labels"].tolist()}) + "\n")
    assert run("check", file, "-t", SMALL, "--select", "TM303").exit_code == 1
    assert run("fix", file, "-t", SMALL, "-o", tmp_path / "fixed").exit_code == 0
    assert run("check", tmp_path / "fixed", "-t", SMALL, "--select", "TM303").exit_code == 0
    labels = [json.loads(line)["labels"] for line in (tmp_path / "fixed" / "part-00000.jsonl").read_text().splitlines()]
    wanted = [foreign(row, labels=True)["labels"].tolist() for row in data.rows]
    assert labels == wanted


def test_a_repaired_copy_hides_no_infinite_log_prob_and_garbles_no_bytes(tmp_path):
    table = {
        "input_ids": [[1, 2, 3, 4]],
        "loss_mask": [[1, 1, 1, 1]],
        "logprobs": [[None, -math.inf, -0.5, -0.25]],
        "image": [b"\x89PNG"],
        "when": [datetime.datetime(2026, 1, 1)],
    }
    pq.write_table(pa.table(table), tmp_path / "d.parquet")
    done = CliRunner().invoke(app, ["fix", str(tmp_path / "d.parquet"), "--out", str(tmp_path / "fixed")])
    assert done.exit_code == 0, done.output
    row = open_dataset(tmp_path / "fixed" / "part-00000.jsonl").row(0)
    assert row["logprob"].tolist()[1:] == [-math.inf, -0.5, -0.25] and math.isnan(row["logprob"][0])
    assert row["mask"].tolist() == [0, 1, 1, 1]
    assert base64.b64decode(row.scalars["image"]) == b"\x89PNG"
    assert row.scalars["when"] == "2026-01-01T00:00:00"
