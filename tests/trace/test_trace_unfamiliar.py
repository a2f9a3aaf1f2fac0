"""A key that nobody knows is kept or counted, wherever in a log it stands."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trace_fixtures import GOOD, ROOT, inspect_archive

from tracemask.trace import read_traces
from tracemask.trace.jsonl import to_json
from tracemask.trace.shape import known, unfamiliar

KEY, VALUE = "zz_unheard_of", "zz-value"

# Objects whose keys are somebody else's: free-form data that the importer leaves out, or reads by name only.
FREE = {
    "verifiers": r"(task\.data|agent\.config|rewards)",
    "atif": r"steps\[\]\.extra(\.context_management)?",
    "claude-code": r"(compactMetadata|message\.usage|snapshot|toolUseResult)",
    "codex": r"payload(\.base_instructions|\.info(\.last_token_usage)?)?",
    "swe-agent": r"messages\[\]\.extra",
    "tau2": r"(info(\.\w+)?|tasks\[\]|simulations\[\]\.(messages\[\]\.tool_calls\[\]\.arguments|reward_info\.\w+))",
    "openai": r"rewards",
    "tracemask": r"rewards",
}


def objects(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        yield path, value
        for key, item in value.items():
            yield from objects(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for item in value:
            yield from objects(item, f"{path}[]")


@pytest.mark.parametrize("name", list(GOOD))
def test_an_unheard_of_key_is_kept_or_counted_in_every_object_of_a_log(name: str, tmp_path: Path) -> None:
    lines = (ROOT / name).suffix == ".jsonl"
    text = (ROOT / name).read_text(encoding="utf-8")
    records = [json.loads(line) for line in text.splitlines()] if lines else [json.loads(text)]
    path = tmp_path / Path(name).name
    free = re.compile(rf"(traces\[\]\.)?{FREE.get(GOOD[name], '$.')}$")
    tried = 0
    for number, record in enumerate(records):
        for index, (place, _) in enumerate(objects(record)):
            if free.match(place):
                continue
            changed = copy.deepcopy(records)
            list(objects(changed[number]))[index][1][KEY] = VALUE
            path.write_text("\n".join(map(json.dumps, changed)) if lines else json.dumps(changed[0]))
            reading = read_traces(path, format=GOOD[name], on_error="fail")
            kept = any(VALUE in json.dumps(to_json(trace)) for trace in reading)
            assert kept or any(KEY in field for field in reading.unknown_fields), place
            tried += 1
    assert tried


def test_an_unheard_of_key_of_an_inspect_sample_is_kept_or_counted(tmp_path: Path) -> None:
    source = ROOT / "inspect"
    sample = json.loads((source / "samples/one_epoch_1.json").read_text())
    free = re.compile(
        r"(attachments|events\[\](?!\.(input|output))|.*\.(arguments|parameters|properties|hour|usage)|scores)"
    )
    for index, (place, _) in enumerate(objects(sample)):
        if free.match(place):
            continue
        changed = copy.deepcopy(sample)
        list(objects(changed))[index][1][KEY] = VALUE
        folder = tmp_path / str(index)
        (folder / "samples").mkdir(parents=True)
        (folder / "header.json").write_text((source / "header.json").read_text())
        (folder / "samples/one_epoch_1.json").write_text(json.dumps(changed))
        reading = read_traces(inspect_archive(folder, folder), on_error="fail")
        kept = any(VALUE in json.dumps(to_json(trace)) for trace in reading)
        assert kept or any(KEY in field for field in reading.unknown_fields), place


def test_strict_refuses_a_key_that_a_shape_does_not_know(tmp_path: Path) -> None:
    row = {"input": "a", "output": "b", "score": 1.0, "step": 1}
    (tmp_path / "log.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(row | {'surprise': 1})}\n")
    reading = read_traces(tmp_path / "log.jsonl", strict=True)
    assert len(list(reading)) == 1
    assert [error.where for error in reading.skipped] == ["log.jsonl:2:surprise"]


def test_a_shape_looks_through_lists_and_takes_null_for_absent() -> None:
    shape = known("a", b=known("c"), d={"*": known("e")})
    value = {"a": {"x": 1}, "b": [[{"c": 1, "f": 2}], {"g": None}], "d": {"one": {"e": 1}, "two": {"h": 1}}, "i": None}
    assert list(unfamiliar(value, shape)) == ["b[][].f", "d.two.h"]
