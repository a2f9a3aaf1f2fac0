"""From paths to traces: skips with places, ranges for workers, layouts, sniffing."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from trace_fixtures import BAD, GOOD, ROOT, inspect_archive

from tracemask.core.errors import TraceError, TracemaskError, UsageError
from tracemask.trace import count_units, inputs, read_traces, read_units, unit_ranges
from tracemask.trace.formats import FORMATS
from tracemask.trace.jsonl import to_json
from tracemask.trace.parse import loads

CHAT = ROOT / "openai" / "chat.jsonl"


def row(text: str, **more: Any) -> str:
    return json.dumps({"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text}], **more})


@pytest.mark.parametrize(("name", "expected"), BAD.items())
def test_every_bad_record_is_refused_with_its_file_line_and_field(name: str, expected: list[tuple[str, str]]) -> None:
    reading = read_traces(ROOT / name, format=name.split("/")[0])
    list(reading)
    assert [(error.code, error.where) for error in reading.skipped] == expected


@pytest.mark.parametrize(("name", "form"), GOOD.items())
def test_every_good_log_is_recognised_by_itself_with_a_reason(name: str, form: str) -> None:
    reading = read_traces(ROOT / name)
    traces = list(reading)
    assert (reading.format, reading.skipped) == (form, [])
    assert reading.why
    assert traces
    assert all(trace.source is not None and trace.source.format == form for trace in traces)


def test_an_inspect_archive_is_recognised(tmp_path: Path) -> None:
    assert read_traces(inspect_archive(tmp_path)).format == "inspect"


def test_a_run_goes_on_after_a_bad_line_and_fail_stops_at_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f'{row("a")}\n{{"messages": [\n{row("b")}\n')
    reading = read_traces(path)
    assert [trace.messages[0].text() for trace in reading] == ["a", "b"]
    assert [error.where for error in reading.skipped] == ["log.jsonl:2"]
    with pytest.raises(TraceError, match=r"log\.jsonl:2: TM910"):
        list(read_traces(path, on_error="fail"))


def test_strict_refuses_the_lines_that_hold_unknown_fields(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(f"{row('a')}\n{row('b', surprise=1)}\n")
    kept = read_traces(path)
    assert len(list(kept)) == 2
    assert kept.unknown_fields == {"surprise": 1}
    strict = read_traces(path, strict=True)
    assert len(list(strict)) == 1
    assert strict.skipped[0].where == "log.jsonl:2:surprise"


def test_blank_lines_and_a_byte_order_mark_are_no_records(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + f"{row('a')}\n\n  \n{row('b')}".encode())
    traces = list(read_traces(path))
    assert [trace.source.line for trace in traces if trace.source] == [1, 4]


@pytest.mark.parametrize("every", [1, 2, 3, 100])
def test_ranges_read_apart_give_what_one_reading_gives(every: int, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("\n\n".join([*CHAT.read_text().splitlines(), "{broken", row("end")]))
    (file,) = inputs(path)
    whole = [(unit.index, unit.line, [to_json(t) for t in unit.traces], str(unit.error)) for unit in read_units(file)]
    assert count_units(file) == len(whole) == 8
    parts = [
        (unit.index, unit.line, [to_json(t) for t in unit.traces], str(unit.error))
        for span in unit_ranges(file, every)
        for unit in read_units(file, at=pickle.loads(pickle.dumps(span)))  # noqa: S301
    ]
    assert parts == whole
    assert [u.index for u in read_units(file, 3, 5)] == [3, 4]


def test_parquet_rows_lose_the_nulls_that_the_column_added_and_nothing_else(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def calls(**arguments: Any) -> list[dict[str, Any]]:
        return [{"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}]

    rows = [
        {
            "messages": [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": None, "tool_calls": calls(x=1)},
            ]
        },
        {
            "messages": [
                {
                    "role": "assistant",
                    "content": "b",
                    "tool_calls": calls(y="s"),
                    "token_ids": [7, 8],
                    "logprobs": [-0.5, None],
                }
            ]
        },
    ]
    path = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=1)
    first, second = read_traces(path)
    assert first.messages[1].blocks[0].arguments == {"x": 1}  # type: ignore[union-attr]
    assert second.messages[0].blocks[1].arguments == {"y": "s"}  # type: ignore[union-attr]
    assert second.messages[0].sampled is not None
    assert second.messages[0].sampled.logprobs == [-0.5, None]
    (file,) = inputs(path)
    assert count_units(file) == 2
    assert [unit.traces[0].id for unit in read_units(file, 1, 2)] == ["log.parquet:2"]


def test_a_json_list_and_json_lines_under_the_name_json_are_read_as_lines_are(tmp_path: Path) -> None:
    rows = CHAT.read_text().splitlines()[:3]
    (tmp_path / "list.json").write_text(f"[{','.join(rows)}]")
    (tmp_path / "lines.json").write_text("\n".join(rows))
    (tmp_path / "lines.jsonl").write_text("\n".join(rows))
    texts = [
        [trace.messages for trace in read_traces(tmp_path / name)]
        for name in ("list.json", "lines.json", "lines.jsonl")
    ]
    assert texts[0] == texts[1] == texts[2]


def test_compressed_lines_are_read_as_plain_ones(tmp_path: Path) -> None:
    import pyarrow as pa

    raw = CHAT.read_bytes()
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(raw))
    with pa.CompressedOutputStream(str(tmp_path / "log.jsonl.zst"), "zstd") as out:
        out.write(raw)
    plain = [trace.messages for trace in read_traces(CHAT)]
    for name in ("log.jsonl.gz", "log.jsonl.zst"):
        assert [trace.messages for trace in read_traces(tmp_path / name)] == plain
        (file,) = inputs(tmp_path / name)
        spans = unit_ranges(file, 4)
        assert sum(len(list(read_units(file, at=span))) for span in spans) == count_units(file) == 6


def test_a_folder_a_glob_and_a_list_are_one_input_in_one_order(tmp_path: Path) -> None:
    for name in ("b/2.jsonl", "a.jsonl", "b/1.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(row(name))
    (tmp_path / "notes.txt").write_text("not a log")
    (tmp_path / "config.json").write_text('{"lr": 1}')
    folder = [trace.id for trace in read_traces(tmp_path)]
    assert folder == ["a.jsonl:1", "b/1.jsonl:1", "b/2.jsonl:1"]
    assert [trace.id for trace in read_traces(str(tmp_path / "**" / "*.jsonl"))] == folder
    assert [trace.id for trace in read_traces([tmp_path / "a.jsonl", tmp_path / "b"])] == [
        "a.jsonl:1",
        "1.jsonl:1",
        "2.jsonl:1",
    ]


def test_nothing_that_is_stored_names_the_folder_that_a_log_lies_in(tmp_path: Path) -> None:
    for place in ("here", "there/deeper"):
        shutil.copytree(ROOT / "verifiers", tmp_path / place)
    here, there = ([to_json(t) for t in read_traces(tmp_path / place)] for place in ("here", "there/deeper"))
    assert here == there
    assert str(tmp_path) not in json.dumps(here)


def test_a_file_that_two_formats_fit_is_refused_with_both_reasons(tmp_path: Path) -> None:
    both = {"messages": [{"role": "user", "content": "a"}], "input": "a", "output": "b", "score": 1.0}
    (tmp_path / "log.jsonl").write_text(json.dumps(both))
    with pytest.raises(TraceError, match=r"TM913.*openai: .*verl: "):
        read_traces(tmp_path / "log.jsonl")
    assert len(list(read_traces(tmp_path / "log.jsonl", format="openai"))) == 1


def test_a_folder_of_two_formats_is_refused(tmp_path: Path) -> None:
    shutil.copy(CHAT, tmp_path / "a.jsonl")
    shutil.copy(ROOT / "slime/samples.jsonl", tmp_path / "b.jsonl")
    with pytest.raises(TraceError, match=r"TM913.*a\.jsonl is openai, b\.jsonl is slime"):
        read_traces(tmp_path)


@pytest.mark.parametrize(
    ("content", "code"),
    [("", "TM904"), ("\n\n", "TM904"), ('{"lr": 1}\n', "TM912"), ("[1, 2]\n", "TM912"), ("{broken\n", "TM910")],
)
def test_a_file_that_is_no_log_is_a_coded_error(content: str, code: str, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(content)
    with pytest.raises(TracemaskError) as caught:
        read_traces(tmp_path / "log.jsonl")
    assert caught.value.code == code
    assert "log.jsonl" in caught.value.where


def test_a_missing_file_an_empty_folder_and_an_unknown_format_are_usage_errors(tmp_path: Path) -> None:
    for path, form, code in (
        (tmp_path / "none", "auto", "TM901"),
        (tmp_path, "auto", "TM904"),
        (CHAT, "opnai", "TM902"),
    ):
        with pytest.raises(UsageError, match=code):
            read_traces(path, format=form)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    (tmp_path / "rollout_0.pt").write_bytes(pickle.dumps({"samples": []}))
    with pytest.raises(TracemaskError):
        list(read_traces(tmp_path / "rollout_0.pt", format="slime", on_error="fail"))
    package = Path(read_traces.__code__.co_filename).parent
    source = "".join(path.read_text() for path in package.rglob("*.py"))
    assert "import pickle" not in source


@pytest.mark.parametrize(
    "raw", [b"NaN", b"1e400", b"18446744073709551616", b"-9223372036854775809", b'"\\ud83d\\ude00"', b"0.1"]
)
def test_values_are_what_the_standard_json_reads(raw: bytes) -> None:
    expected = json.loads(raw)
    found = loads(raw)
    assert type(found) is type(expected)
    assert found == expected or found != found


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"a": ' * 100_000, b"\xff\xfe", b"1" * 5000])
def test_text_that_no_parser_should_follow_is_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        loads(raw)


def test_every_format_of_the_table_loads_and_names_itself() -> None:
    assert [FORMATS[name].name for name in FORMATS] == list(FORMATS)


def test_reading_does_not_hold_the_file(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "log.jsonl"
    line = row("words " * 2000) + "\n"
    with path.open("w") as file:
        for _ in range(400):
            file.write(line)
    tracemalloc.start()
    count = sum(1 for _ in read_traces(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 400
    assert path.stat().st_size > 9_000_000
    assert peak < 4_000_000


def test_files_of_a_folder_that_are_not_read_are_counted_by_kind(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(row("a"))
    (tmp_path / "deep").mkdir()
    for name in ("run.log", "deep/run.LOG", "rollouts.pkl", "Makefile", ".hidden", ".hidden.jsonl", "deep/.DS_Store"):
        (tmp_path / name).write_text("x")
    (tmp_path / "config.json").write_text('{"lr": 1}')
    for form, unfit in (("auto", ["config.json"]), ("openai", [])):
        reading = read_traces(tmp_path, format=form)
        assert reading.left_out.unfit == unfit
        assert reading.left_out.other_names == {".log": 2, ".pkl": 1, "": 1}
    assert read_traces(tmp_path / "a.jsonl").left_out.lines() == []
    said = read_traces(tmp_path).left_out.lines()
    assert said[0].startswith("files that no format fits (1): config.json;")
    assert said[1].startswith("files with a name that no log has (4): .log 2, no ending 1, .pkl 1;")


def test_what_is_hidden_below_a_folder_is_no_part_of_it(tmp_path: Path) -> None:
    root = tmp_path / ".harness"  # it is named, so it is meant
    for folder in (".", ".ipynb_checkpoints", "deep/.git/logs"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "a.jsonl").write_text(row("a"))
        (root / folder / "a.log").touch()
    reading = read_traces(root)
    assert [file.rel for file in reading.files] == ["a.jsonl"]
    assert reading.left_out.other_names == {".log": 1}


@pytest.mark.parametrize("again", ["a.jsonl", "", "link.jsonl"])
def test_an_input_that_is_given_twice_is_refused(tmp_path: Path, again: str) -> None:
    (tmp_path / "a.jsonl").write_text(row("a"))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "a.jsonl").symlink_to(tmp_path / "a.jsonl")
    second = tmp_path / "links" / "a.jsonl" if again == "link.jsonl" else tmp_path / again
    with pytest.raises(UsageError, match="TM900 this input is given twice.*name it once"):
        read_traces([tmp_path / "a.jsonl", second])
    (tmp_path / "links" / "a.jsonl").unlink()
    (tmp_path / "links" / "a.jsonl").write_text(row("b"))
    with pytest.raises(UsageError, match="TM900 two inputs are both 'a.jsonl'.*common folder"):
        read_traces([tmp_path / "a.jsonl", tmp_path / "links"])


def test_folders_without_logs_are_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(UsageError, match=f"^{tmp_path}/a, {tmp_path}/b: TM904"):
        read_traces([tmp_path / "a", tmp_path / "b"])


def test_a_folder_of_other_things_is_left_after_a_bounded_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tracemask.core import walk
    from tracemask.store.reader import open_dataset
    from tracemask.trace import sniff

    monkeypatch.setattr(walk, "MOST", 30)
    monkeypatch.setattr(sniff, "_MOST", 5)
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        for k in range(20):
            (tmp_path / folder / f"{k}.py").touch()
    (tmp_path / "c" / "log.jsonl").write_text(row("a"))
    for verb in (read_traces, open_dataset):
        with pytest.raises(UsageError, match="TM905 0 of the first 40 files"):
            verb(tmp_path)
    for k in range(3):  # enough logs among them: they are what the folder is for
        (tmp_path / "a" / f"log{k}.jsonl").write_text(row("a"))
    assert len(list(read_traces(tmp_path))) == 4
    for k in range(40):
        (tmp_path / "a" / f"{k}.json").write_text('{"lr": 1}')
    with pytest.raises(TraceError, match="TM912 no format fits 6 of the first 6 files"):
        read_traces(tmp_path)


def test_a_folder_that_cannot_be_read_stops_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    (tmp_path / "log.jsonl").write_text(row("a"))
    (tmp_path / "closed").mkdir()
    scan = os.scandir

    def closed(path: Any) -> Any:
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(PermissionError, match="closed"):
        read_traces(tmp_path)


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_a_pickle_is_refused_as_what_it_is_and_is_never_loaded(tmp_path: Path, kind: str) -> None:
    import zipfile

    class Bomb:
        def __reduce__(self) -> Any:
            return (tmp_path / "exploded").touch, ()

    path = tmp_path / "rollout_0.pt"
    raw = pickle.dumps({"samples": [Bomb()]})
    if kind == "pickle":
        path.write_bytes(raw)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("rollout_0/data.pkl", raw)
    with pytest.raises(TraceError, match=r"rollout_0\.pt: TM912 a pickle, .* Fix: .*torch\.load.*json\.dumps"):
        read_traces(path)
    with pytest.raises(UsageError, match=r"TM904 no log files; there: \.pt 1\. Fix: expected \.jsonl"):
        read_traces(tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_a_record_of_no_format_is_answered_with_one_that_is(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"request": {}, "response": {}}\n')
    with pytest.raises(TraceError, match='keys request, response.*"messages"') as caught:
        read_traces(path)
    path.write_text('{"messages": [{"role": "user", "content": "a"}], "reward": 1.0}\n')
    assert '{"messages": […], "reward": 1.0}' in caught.value.fix and len(list(read_traces(path))) == 1


def test_a_trace_of_our_own_form_is_found_at_its_line_in_this_file_not_in_the_log_it_came_from(tmp_path: Path) -> None:
    from tracemask.trace.jsonl import write_traces

    log, own = tmp_path / "log.jsonl", tmp_path / "own.jsonl"
    log.write_text('\n\n{"messages": [{"role": "user", "content": "a"}]}\n')
    (trace,) = read_traces(str(log))
    assert trace.source is not None and trace.source.line == 3
    write_traces(own, [trace])
    (again,) = read_traces(str(own))
    assert again.source is not None and (again.source.path, again.source.line) == ("own.jsonl", 1)
