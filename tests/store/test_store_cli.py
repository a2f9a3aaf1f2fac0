"""convert, stats and export from the command line: what they print, and exit codes 0, 1 and 2."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from store_rows import ROLLOUTS, TOKENIZER

from tracemask_cli.main import main


@pytest.fixture
def tracemask(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """tracemask(*arguments) → (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tracemask", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tracemask.store.convert import RenderConfig, convert

    out = tmp_path_factory.mktemp("cli") / "shards"
    convert(str(ROLLOUTS), str(out), render=RenderConfig(str(TOKENIZER)))
    return out


def test_convert_prints_a_summary_and_fails_on_more_skips_than_allowed(tracemask: Any, tmp_path: Path) -> None:
    arguments = ("convert", ROLLOUTS, "--tokenizer", TOKENIZER, "-o", tmp_path / "out")
    code, out, err = tracemask(*arguments)
    assert code == 1
    assert "TM915 1 record was skipped, --max-skipped is 0" in err
    assert "harbour.jsonl:21: TM910" in out
    for word in ("rows", "tokens", "authors", "policy", "fidelity", "drift", "bpe_split", "skipped"):
        assert word in out
    code, out, err = tracemask(*arguments, "--max-skipped", 1)
    assert (code, err) == (0, "")
    assert "1 already there" in out


def test_convert_gives_json_for_machines(tracemask: Any, tmp_path: Path) -> None:
    code, out, _ = tracemask("convert", ROLLOUTS, "-t", TOKENIZER, "-o", tmp_path / "out", "--json", "--max-skipped", 1)
    found = json.loads(out)
    assert code == 0
    assert (found["traces"], found["format"], len(found["skipped"])) == (40, "openai", 1)
    assert sum(found["authors"].values()) == found["tokens"]
    assert found["sampled_share"] == found["sampled"] / found["tokens"]


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"input": "no/such.jsonl"}, 2, "TM901"),
        ({"tokenizer": "no/such"}, 2, "TM901"),
        ({"input": "empty.jsonl"}, 2, "TM904"),
        ({"input": "words.txt"}, 2, "TM904"),
        ({"options": ["--template", "no.jinja"]}, 2, "TM901"),
        ({"options": ["--template-kwarg", "oops"]}, 2, "TM900"),
        ({"options": ["--engine", "spark"]}, 2, "TM902"),
        ({"options": ["--profile", "tiny"]}, 2, "TM902"),
        ({"options": ["--history", "none"]}, 2, "TM902"),
        ({"options": ["--control-text", "maybe"]}, 2, "TM900"),
        ({"options": ["--authors", "no.toml"]}, 2, "TM901"),
        ({"options": ["--on-error", "fail"]}, 2, "TM910"),
        ({"options": ["--workers", "0"]}, 2, "TM900"),
    ],
)
def test_bad_input_is_one_coded_line_with_a_remedy(
    tracemask: Any, tmp_path: Path, change: dict[str, Any], code: int, says: str
) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "words.txt").write_text("just words\n")
    source = tmp_path / change["input"] if "input" in change else ROLLOUTS
    tokenizer = change.get("tokenizer", TOKENIZER)
    options = ["--format", "openai"] if "input" in change else []
    found, _, err = tracemask(
        "convert", source, "-t", tokenizer, "-o", tmp_path / "o", *options, *change.get("options", [])
    )
    assert found == code
    assert says in err
    assert "Traceback" not in err
    assert not (tmp_path / "o" / "manifest.json").exists()


def test_what_is_in_the_way_of_the_output_is_said(tracemask: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    for out, says in {"file": "TM932 File exists", "mine": "TM933 the folder is not empty"}.items():
        code, _, err = tracemask("convert", ROLLOUTS, "-t", TOKENIZER, "-o", tmp_path / out, "--max-skipped", 1)
        assert code == 2
        assert says in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
    code, _, err = tracemask("convert", ROLLOUTS, "-t", TOKENIZER, "-o", tmp_path / "o", "--workers", 0)
    assert "TM900 workers: 0" in err
    assert "fix: give 1 or more" in err


def test_stats_prints_tables_and_json(tracemask: Any, shards: Path) -> None:
    code, out, _ = tracemask("stats", shards)
    assert code == 0
    for word in ("tokens by author", "tokens by role", "tokens by part", "groups", "reward", "fidelity", "█"):
        assert word in out
    code, out, _ = tracemask("stats", shards, "--json")
    found = json.loads(out)
    assert found["tokens"] == sum(found["by"]["author"].values())
    assert found["groups"]["groups"] == 8


def test_stats_reads_another_tools_file_with_a_column_map(tracemask: Any, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": [1, 2], "m": [0, 1]}\n')
    code, out, _ = tracemask("stats", tmp_path / "a.jsonl", "--columns", "ids=x,mask=m", "--json")
    assert (code, json.loads(out)["trained"]) == (0, 1)
    assert tracemask("stats", tmp_path / "a.jsonl")[0] == 2


def test_a_truncated_shard_stops_every_verb_with_exit_code_2(tracemask: Any, shards: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(shards, tmp_path / "cut")
    shard = next((tmp_path / "cut").glob("*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-1])
    for verb in (["stats"], ["export", "--to", "trl", "-o", tmp_path / "x"]):
        code, _, err = tracemask(verb[0], tmp_path / "cut", *verb[1:])
        assert code == 2
        assert "TM508" in err


@pytest.mark.parametrize("to", ["trl", "parquet"])
def test_export_says_what_it_wrote_and_what_got_lost(tracemask: Any, shards: Path, tmp_path: Path, to: str) -> None:
    code, out, _ = tracemask("export", shards, "--to", to, "-o", tmp_path / "out")
    assert code == 0
    assert "48 rows" in out
    assert ("not in this form: author" in out) == (to == "trl")
    code, out, _ = tracemask("export", shards, "--to", to, "-o", tmp_path / "json", "--json")
    assert json.loads(out)["rows"] == 48


def test_an_unknown_form_names_the_known_ones(tracemask: Any, shards: Path, tmp_path: Path) -> None:
    code, _, err = tracemask("export", shards, "--to", "tlr", "-o", tmp_path / "out")
    assert code == 2
    assert "did you mean 'trl'" in err
