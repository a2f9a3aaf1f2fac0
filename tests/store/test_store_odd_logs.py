"""A log with lines that nobody should write: each is skipped with its reason, the others become rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from store_rows import TOKENIZER

from tracemask.store.convert import RenderConfig, convert
from tracemask.store.reader import open_dataset


def line(name: str, **fields: Any) -> str:
    reply = {"role": "assistant", "content": "a", "token_ids": [5, 6]} | fields
    return json.dumps({"id": name, "messages": [{"role": "user", "content": "q"}, reply]}) + "\n"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"columns": {"id": [1, 2]}}, "TM501"),
        ({"columns": {"reward": [1, 2]}}, "TM501"),
        ({"columns": {"logprob": [1, 2]}}, "TM501"),
        ({"columns": {"x": [1, 10**400]}}, "TM911"),
        ({"logprobs": [-1, -(10**400)]}, "TM911"),
        ({"logprobs": [-1]}, "TM101"),
        ({"token_ids": [5, 2**31 - 1]}, "TM205"),
    ],
)
def test_one_bad_line_costs_itself_and_no_other(fields: dict[str, Any], code: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(line("before") + line("bad", **fields) + line("after"), encoding="utf-8")
    summary = convert(str(log), str(tmp_path / "out"), render=RenderConfig(str(TOKENIZER)))
    assert [skip.code for skip in summary.skipped] == [code]
    assert summary.skipped[0].where.startswith("log.jsonl:2")
    assert open_dataset(tmp_path / "out").scalars(["trace_id"])["trace_id"] == ["before", "after"]


def test_a_log_prob_beyond_float32_is_stored_as_infinite_without_a_warning(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(line("t", logprobs=[-1e300, -1.0]), encoding="utf-8")
    convert(str(log), str(tmp_path / "out"), render=RenderConfig(str(TOKENIZER)))
    row = open_dataset(tmp_path / "out").row(0)
    assert row["logprob"][row["sampled"]].tolist() == [float("-inf"), -1.0]
