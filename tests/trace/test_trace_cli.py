"""tracemask trace, formats and schema as a person and as a machine would call them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from trace_fixtures import ROOT

from tracemask.trace import read_traces, schema
from tracemask.trace.formats import FORMATS
from tracemask.trace.jsonl import from_json


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from tracemask_cli.main import main; sys.argv[0] = 'tracemask'; main()"
    environment = {"NO_COLOR": "1", "PATH": "", "PYTHONUTF8": "1"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )


def test_trace_shows_authors_calls_fidelity_tokens_rewards_edges_and_problems() -> None:
    done = run("trace", str(ROOT / "codex/rollout.jsonl"))
    assert done.returncode == 0
    for word in (
        "taskset Mend the horn.",
        "→ shell(",
        "compaction (compacted)",
        "rewrite (rolled back)",
        "copied",
        "reasoning 11 chars",
        "fidelity messages",
        "reward missing",
        "truncated",
        "format codex",
    ):
        assert word in done.stdout
    done = run("trace", str(ROOT / "openai/chat.jsonl"), "--first", "2")
    for word in ("exact 3 tok", "reward 1", "5 sampled tokens", "… 4 more traces", "unknown field pier"):
        assert word in done.stdout
    assert "lone surrogate" in done.stderr


def test_refused_lines_are_listed_with_their_place_and_exit_one_unless_allowed() -> None:
    path = str(ROOT / "openai/bad.jsonl")
    done = run("trace", path)
    assert done.returncode == 1
    assert "bad.jsonl:3:messages[0].role: TM911 unknown role 'narrator'" in done.stderr
    assert "12 refused" in done.stderr
    assert "Traceback" not in done.stderr
    assert run("trace", path, "--max-skipped", "12").returncode == 0


def test_json_is_our_own_form_and_nothing_else_on_stdout() -> None:
    done = run("trace", str(ROOT / "verifiers/traces.jsonl"), "--json")
    traces = [from_json(json.loads(line)) for line in done.stdout.splitlines()]
    assert traces == list(read_traces(ROOT / "verifiers/traces.jsonl"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["/none"], "TM901"),
        ([str(ROOT / "openai/chat.jsonl"), "--format", "codec"], "TM902"),
        ([str(ROOT), "--first", "1"], "TM913"),
        ([str(ROOT / "openai/chat.jsonl"), "--authors", "/none.toml"], "TM901"),
    ],
)
def test_what_cannot_run_is_one_coded_error_and_exit_two(arguments: list[str], code: str) -> None:
    done = run("trace", *arguments)
    assert done.returncode == 2
    assert code in done.stderr
    assert "Traceback" not in done.stderr


def test_control_characters_of_a_log_cannot_drive_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text(
        json.dumps({"id": "\x1b[2J", "messages": [{"role": "user", "content": "\x1b]0;own\x07"}]})
    )
    done = run("trace", str(tmp_path / "log.jsonl"))
    assert "\x1b" not in done.stdout
    assert "1b[2J" in done.stdout


def test_formats_lists_every_format_with_its_fidelity() -> None:
    lines = run("formats").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(FORMATS)
    rows = json.loads(run("formats", "--json").stdout)
    assert {row["name"]: row["fidelity"] for row in rows}["codex"] == "messages"


def test_schema_prints_the_published_schema() -> None:
    assert json.loads(run("schema", "trace").stdout) == schema()
