"""Files that no tool should write: whatever is in them, the rest is read, and what is not is counted with its place."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_fixtures import GOOD, ROOT

from tracemask.trace import Reading, Trace, count_units, inputs, read_traces, read_units, trace_to_chat, unit_ranges
from tracemask.trace.extras import extras
from tracemask.trace.invariants import findings
from tracemask.trace.jsonl import dumps, from_json, to_json
from tracemask.trace.parse import DEEP, loads

GOOD_LINE = json.dumps({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})
REPLY = {"role": "assistant", "content": "a", "token_ids": [1, 2], "logprobs": [-0.5, -0.25]}


def lines(path: Path, *raw: str | bytes) -> Reading:
    path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in raw))
    return read_traces(path, format="openai")


def counts(reading: Reading) -> tuple[int, int]:
    return len(list(reading)), len(reading.skipped)


def row(reply: dict[str, Any], **more: Any) -> str:
    return json.dumps({"messages": [{"role": "user", "content": "q"}, reply], **more})


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


# ---- bytes


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_line_ends_of_either_kind_and_a_byte_order_mark_change_nothing(ending: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + ending.join([GOOD_LINE.encode()] * 3))
    reading = read_traces(path)
    assert [[message.text() for message in trace.messages] for trace in reading] == [["q", "a"]] * 3


@pytest.mark.parametrize(
    "bad",
    [
        b"\x00",
        b'{"messages": \x00}',
        b"\xff\xfe{",
        b"[]",
        b"7",
        b"null",
        b'"words"',
        b"{" * 100_000,
        nested(DEEP + 100).encode(),
        b'{"messages": [{"role": "user", "content": "\xed\xa0\xbd"}]}',
    ],
    ids=["nul", "nul inside", "utf-16", "list", "number", "null", "string", "braces", "deep", "surrogate bytes"],
)
def test_a_bad_line_costs_itself_alone(bad: bytes, tmp_path: Path) -> None:
    reading = lines(tmp_path / "log.jsonl", GOOD_LINE, bad, GOOD_LINE)
    assert counts(reading) == (2, 1)
    assert reading.skipped[0].where.startswith("log.jsonl:2")


def test_a_line_of_many_megabytes_is_a_line(tmp_path: Path) -> None:
    huge = json.dumps({"messages": [{"role": "user", "content": "x" * 30_000_000}]})
    assert counts(lines(tmp_path / "log.jsonl", GOOD_LINE, huge, GOOD_LINE)) == (3, 0)


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("every", [1, 100])
def test_a_compressed_file_that_was_cut_is_read_up_to_the_cut(suffix: str, every: int, tmp_path: Path) -> None:
    import pyarrow as pa

    rows = [
        json.dumps({"id": str(i), "messages": [{"role": "user", "content": str(i * 7919) * 500}]}) for i in range(2000)
    ]
    raw = "\n".join(rows).encode()
    path = tmp_path / f"log.jsonl.{suffix}"
    if suffix == "gz":
        path.write_bytes(gzip.compress(raw))
    else:
        with pa.CompressedOutputStream(str(path), "zstd") as out:
            out.write(raw)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) * 3 // 4])
    reading = read_traces(path, format="openai")
    ids = [trace.id for trace in reading]
    assert ids == [str(i) for i in range(len(ids))]
    assert len(ids) > 1000
    assert [error.code for error in reading.skipped] == ["TM910"]
    (file,) = inputs(path, "openai")
    assert count_units(file) == len(ids) + 1
    apart = [unit for span in unit_ranges(file, every * 300) for unit in read_units(file, at=span)]
    assert sum(len(unit.traces) for unit in apart) == len(ids)
    assert [unit.error.code for unit in apart if unit.error] == ["TM910"]


def test_a_compressed_document_that_was_cut_is_refused(tmp_path: Path) -> None:
    raw = gzip.compress(f"[{GOOD_LINE}]".encode())
    (tmp_path / "log.json.gz").write_bytes(raw[: len(raw) // 2])
    reading = read_traces(tmp_path / "log.json.gz", format="openai")
    assert counts(reading) == (0, 1)
    assert reading.skipped[0].code == "TM910"


def test_rows_of_a_damaged_parquet_file_are_counted_one_by_one(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "log.parquet"
    rows = [{"id": str(i), "messages": [{"role": "user", "content": f"{i} " * 300}]} for i in range(2000)]
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=100, compression="gzip")
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2
    raw[middle : middle + 4000] = bytes(4000)
    path.write_bytes(raw)
    reading = read_traces(path)
    read, skipped = counts(reading)
    assert read + skipped == 2000
    assert 0 < read < 2000
    assert {error.code for error in reading.skipped} == {"TM910"}
    assert reading.skipped[0].where == f"log.parquet:{read + 1}"


def test_parquet_values_that_json_does_not_have_are_kept_as_json_can(tmp_path: Path) -> None:
    import datetime
    import decimal

    import pyarrow as pa
    import pyarrow.parquet as pq

    more = {
        "image": b"\x00\x01",
        "when": datetime.datetime(2026, 1, 1),
        "price": decimal.Decimal("1.5"),
        "messages": [{"role": "user", "content": "q"}],
    }
    pq.write_table(pa.Table.from_pylist([more]), tmp_path / "log.parquet")
    (trace,) = read_traces(tmp_path / "log.parquet")
    assert trace.extra == {"image": "AAE=", "when": "2026-01-01T00:00:00", "price": 1.5}
    assert from_json(json.loads(dumps(to_json(trace)))).extra == trace.extra


# ---- folders


def test_a_file_of_a_folder_that_is_damaged_from_its_start_is_counted_and_one_that_is_no_log_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.jsonl").write_text(GOOD_LINE)
    (tmp_path / "b.jsonl").write_text('{"messages": [\n' * 12)
    (tmp_path / "config.json").write_text('{"lr": 1}')
    (tmp_path / "empty.jsonl").write_text("")
    reading = read_traces(tmp_path)
    assert counts(reading) == (1, 12)
    assert {error.where.split(":")[0] for error in reading.skipped} == {"b.jsonl"}
    assert reading.left_out.unfit == ["config.json", "empty.jsonl"]
    assert not reading.notes


# ---- values


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"token_ids": [1, -2]}, "TM911"),
        ({"token_ids": [1, 2**31]}, "TM911"),
        ({"token_ids": [1, 10**30]}, "TM911"),
        ({"token_ids": [1, 2.0]}, "TM911"),
        ({"token_ids": [1, True]}, "TM911"),
        ({"token_ids": ["1", "2"]}, "TM911"),
        ({"token_ids": [[1], [2]]}, "TM911"),
        ({"token_ids": {"0": 1}}, "TM911"),
        ({"logprobs": [-0.5]}, "TM101"),
        ({"logprobs": [-0.5, "-1"]}, "TM911"),
        ({"logprobs": [-0.5, 10**400]}, "TM911"),
        ({"prompt_token_ids": [1, -1]}, "TM911"),
        ({"temperature": "1.0"}, "TM911"),
        ({"parent": "nowhere"}, "TM110"),
        ({"id": "m0"}, "TM110"),
        ({"id": "x", "parent": "x"}, "TM110"),
        ({"tool_calls": [{"function": {"name": "f", "arguments": 7}}]}, "TM911"),
        ({"tool_calls": {"function": {}}}, "TM911"),
        ({"content": {"text": "a"}}, "TM911"),
        ({"content": [{"type": "image_url"}, 7]}, "TM911"),
        ({"role": ["assistant"]}, "TM911"),
        ({"spans": [{"start": 1, "end": 0, "author": "environment"}]}, "TM101"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_place(change: dict[str, Any], code: str, tmp_path: Path) -> None:
    reading = lines(tmp_path / "log.jsonl", row(REPLY | change), GOOD_LINE)
    assert counts(reading) == (1, 1)
    error = reading.skipped[0]
    assert error.code == code
    assert error.where.startswith("log.jsonl:1:messages[1]")
    assert "importer" not in error.what


def test_numbers_that_json_does_not_have_are_kept_and_found(tmp_path: Path) -> None:
    reading = lines(
        tmp_path / "log.jsonl", row(REPLY | {"logprobs": [float("nan"), float("-inf")]}, reward=float("inf"))
    )
    (trace,) = reading
    assert [finding.code for finding in findings(trace)] == ["TM404"]
    assert "Infinity" in dumps(to_json(trace)).decode()


def test_arguments_that_nest_too_deep_are_kept_as_text(tmp_path: Path) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": nested(DEEP + 100)}}
    (trace,) = lines(tmp_path / "log.jsonl", row({"role": "assistant", "content": "", "tool_calls": [call]}))
    block = trace.messages[1].blocks[1]
    assert (block.arguments, block.parse_error) == (None, f"nested deeper than {DEEP} levels")  # type: ignore[union-attr]
    assert trace_to_chat(trace)[1]["tool_calls"] == [call]


def test_of_a_key_given_twice_the_last_counts_on_every_road(tmp_path: Path) -> None:
    twice = '{"id": "a", "id": "b", "messages": [{"role": "user", "content": "q"}]%s}'
    reading = lines(tmp_path / "log.jsonl", twice % "", twice % f', "big": {10**30}')
    assert [trace.id for trace in reading] == ["b", "b"]


# ---- anything anywhere

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(["", "words", "\x00", "\ud83d", "1", "a" * 3000]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["type", "text", "id", "a"]), inner, max_size=3)
    ),
    max_leaves=6,
)


def places(value: Any) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, item in list(items) for place in ((value, key), *places(item))]


def sound(trace: Trace) -> None:
    """Everything that later rooms do first with a trace works."""
    list(findings(trace))
    list(extras(trace))
    for branch in trace.branches():
        trace_to_chat(trace, branch)
    again = from_json(loads(dumps(to_json(trace))))
    assert repr(to_json(again)) == repr(to_json(trace))


@pytest.mark.parametrize("name", list(GOOD))
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_value_in_any_field_is_imported_soundly_or_refused_with_its_place(
    name: str, data: st.DataObject, tmp_path: Path
) -> None:
    jsonl = name.endswith(".jsonl")
    text = (ROOT / name).read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()] if jsonl else [json.loads(text)]
    whole = len(records) if jsonl else 1
    for _ in range(data.draw(st.integers(1, 2))):
        container, key = data.draw(st.sampled_from([place for record in records for place in places(record)]))
        container[key] = copy.deepcopy(data.draw(VALUES))
    path = tmp_path / Path(name).name
    path.write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    reading = read_traces(path, format=GOOD[name])
    units = list(reading.units())
    assert len(units) in (whole, 1)  # a line each, or the session as a whole
    for unit in units:
        assert unit.traces or unit.error is not None
        for trace in unit.traces:
            sound(trace)
    for error in reading.skipped:
        assert error.code.startswith("TM")
        assert error.where.startswith(path.name)
        assert "importer" not in error.what, error
