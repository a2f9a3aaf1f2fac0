"""Mutations of every fixture: a coded error or an import, never a traceback, never a silent loss."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trace_fixtures import GOOD, ROOT

from tracemask.core.errors import TracemaskError
from tracemask.trace import read_traces
from tracemask.trace.jsonl import to_json

MUTATIONS = 60
VALUES: list[Any] = [None, True, 0, -1, 2**40, 1.5, "", "words", [], {}, [1], [None], {"a": 1}, [[]], "\ud83d"]
SPEECH = {
    "content",
    "text",
    "message",
    "thinking",
    "reasoning_content",
    "reasoning",
    "response",
    "output",
    "input",
    "system_prompt",
    "summary",
    "observation",
    "error",
    "prompt",
    "arguments",
    "function_name",
}


def records_of(path: Path) -> list[Any]:
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]


def write(path: Path, records: list[Any]) -> None:
    if path.suffix == ".jsonl":
        path.write_bytes(b"".join(json.dumps(record).encode() + b"\n" for record in records))
    else:
        path.write_bytes(json.dumps(records[0]).encode())


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from places(item)


def mutate(records: list[Any], rng: random.Random) -> tuple[list[Any], str]:
    """One change somewhere: a field dropped, retyped, reordered, cut, doubled or renamed; and what it was."""
    changed = copy.deepcopy(records)
    container, key = rng.choice(list(places(changed)))
    before = json.dumps(container)[:300]
    kind = rng.choice(("drop", "retype", "retype", "reorder", "cut", "double", "rename"))
    value = container[key]
    if kind == "drop" and len(records) > 1:
        del container[key]
    elif kind == "reorder" and isinstance(value, list):
        rng.shuffle(value)
    elif kind == "cut" and isinstance(value, list | str):
        container[key] = value[: len(value) // 2]
    elif kind == "double" and isinstance(container, list):
        container.insert(key, copy.deepcopy(value))
    elif kind == "rename" and isinstance(container, dict):
        container[f"{key}_"] = container.pop(key)
    else:
        container[key] = rng.choice(VALUES)
    return changed, f"{kind} {key!r} of {before}, now {json.dumps(container)[:300]}"


def speech(value: Any, *, under: bool = False) -> Counter[str]:
    """Everything that somebody said in a record: strings below the keys that hold words, and how often."""
    found: Counter[str] = Counter()
    if isinstance(value, str) and under and len(value) > 1:
        found[value] += 1
    elif isinstance(value, dict):
        for key, item in value.items():
            found += speech(item, under=key in SPEECH or (under and key != "type"))
    elif isinstance(value, list):
        for item in value:
            found += speech(item, under=under)
    return found


def imported(path: Path, form: str) -> tuple[str, list[TracemaskError], Any]:
    """(everything that the traces hold, as text; refusals; what was said about the rest)."""
    reading = read_traces(path, format=form)
    held = [json.dumps(to_json(trace)) for trace in reading]
    said = (sorted(reading.notes.items()), sorted(reading.unknown_fields.items()), len(reading.findings))
    return "\n".join(held), reading.skipped, said


def coded(error: TracemaskError) -> None:
    assert error.code.startswith("TM")
    assert error.what


@pytest.mark.parametrize("name", list(GOOD))
def test_a_mutated_log_gives_a_coded_error_or_an_import_that_loses_nothing(name: str, tmp_path: Path) -> None:
    records = records_of(ROOT / name)
    path = tmp_path / Path(name).name
    write(path, records)
    whole, refused, said = imported(path, GOOD[name])
    assert not refused
    uttered = speech(records)
    kept = {text for text in uttered if json.dumps(text)[1:-1] in whole}
    assert kept or GOOD[name] in ("verl", "skyrl"), "the fixture says nothing below the keys that SPEECH lists"
    rng = random.Random(name)
    for _ in range(MUTATIONS):
        changed, how = mutate(records, rng)
        write(path, changed)
        try:
            now, errors, also = imported(path, GOOD[name])
        except TracemaskError as error:
            coded(error)
            continue
        if errors or also != said:
            assert all(error.code.startswith("TM") and error.where for error in errors)
            assert not any("importer" in error.what for error in errors), f"{errors} by {how}"
            continue
        still = speech(changed)  # where a log says a thing twice, one of them may be changed
        missing = {text for text in kept if still[text] == uttered[text] and json.dumps(text)[1:-1] not in now}
        assert not missing, f"lost without a word: {missing} by {how}"


@pytest.mark.parametrize("name", list(GOOD))
def test_a_file_cut_anywhere_is_refused_or_read_up_to_the_cut(name: str, tmp_path: Path) -> None:
    raw = (ROOT / name).read_bytes()
    path = tmp_path / Path(name).name
    whole = len(list(read_traces(ROOT / name, format=GOOD[name])))
    for share in range(1, 20):
        path.write_bytes(raw[: len(raw) * share // 20])
        try:
            reading = read_traces(path, format=GOOD[name])
            traces = list(reading)
        except TracemaskError as error:
            coded(error)
            continue
        cut_inside = not raw[: len(raw) * share // 20].endswith(b"\n")
        assert len(traces) <= whole
        assert reading.skipped or not cut_inside or raw[len(raw) * share // 20 :].startswith(b"\n")
