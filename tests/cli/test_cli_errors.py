"""Bad input: a coded line that says where, what and what to do; the right exit code; never a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "fixtures" / "tokenizers" / "small"
HARBOUR = ROOT / "fixtures" / "rollouts" / "harbour.jsonl"


def tracemask(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "tracemask_cli.main", *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_a_broken_line_is_named_counted_and_left_out(tmp_path):
    done = tracemask("convert", HARBOUR, "--tokenizer", SMALL, "-o", tmp_path / "out", "--json")
    assert done.returncode == 1
    summary = json.loads(done.stdout)
    assert summary["traces"] == 40
    assert "harbour.jsonl:21" in done.stdout + done.stderr
    assert "TM910" in done.stdout + done.stderr


@pytest.mark.parametrize("verb", ["show", "check", "stats", "report", "explain"])
def test_a_missing_dataset_is_exit_2(verb, tmp_path):
    done = tracemask(verb, tmp_path / "nothing")
    assert done.returncode == 2
    assert "TM901" in done.stderr
    assert "fix:" in done.stderr


def test_a_missing_log_is_exit_2(tmp_path):
    done = tracemask("convert", tmp_path / "nothing.jsonl", "--tokenizer", SMALL, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "TM901" in done.stderr


def test_an_empty_log_is_exit_2(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    done = tracemask("convert", tmp_path / "empty.jsonl", "--tokenizer", SMALL, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "TM904" in done.stderr


def test_a_missing_tokenizer_is_exit_2(tmp_path):
    done = tracemask("convert", HARBOUR, "--tokenizer", tmp_path / "none", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "TM9" in done.stderr


def test_an_unknown_role_is_named(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"messages":[{"role":"narrator","content":"e"}]}\n')
    done = tracemask("convert", log, "--tokenizer", SMALL, "-o", tmp_path / "out")
    assert done.returncode in (1, 2)
    assert "narrator" in done.stdout + done.stderr
    assert "log.jsonl:1" in done.stdout + done.stderr


def test_a_truncated_shard_is_refused_at_open(shards, tmp_path):
    import shutil

    copy = tmp_path / "cut"
    shutil.copytree(shards, copy)
    shard = next(copy.rglob("*.arrow"))
    shard.write_bytes(shard.read_bytes()[:-100])
    done = tracemask("show", copy)
    assert done.returncode == 2
    assert "TM508" in done.stderr


def test_another_tokenizer_than_the_shards_own_is_refused(shards, tmp_path):
    import shutil

    other = tmp_path / "other"
    shutil.copytree(SMALL, other)
    file = other / "tokenizer.json"
    changed = json.loads(file.read_text())
    changed["added_tokens"][0]["content"] = "<|other|>"
    file.write_text(json.dumps(changed))
    done = tracemask("show", shards, "--tokenizer", other)
    assert done.returncode == 2
    assert "TM506" in done.stderr


def test_show_names_rows_by_number_and_id_and_refuses_others(shards):
    by_number = tracemask("show", shards, "--tokenizer", SMALL, "--row", 0)
    by_id = tracemask("show", shards, "--tokenizer", SMALL, "--row", "harbour-0-0/0")
    assert by_number.returncode == 0
    assert by_number.stdout == by_id.stdout
    assert "in loss" in by_number.stdout
    assert tracemask("show", shards, "--row", "nobody").returncode == 2
    assert tracemask("show", shards, "--row", 10_000).returncode == 2


def test_show_without_colour_has_no_escape_sequences(shards):
    assert "\x1b" not in tracemask("show", shards, "--tokenizer", SMALL).stdout


def test_a_dataset_does_not_differ_from_itself(shards):
    done = tracemask("diff", shards, shards)
    assert done.returncode == 0
    assert "0 differ" in done.stdout


def test_the_report_is_written(shards, tmp_path):
    out = tmp_path / "report.html"
    done = tracemask("report", shards, "--tokenizer", SMALL, "-o", out)
    assert done.returncode == 0, done.stderr
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


BROKEN_VERB = """
import sys, types
from tracemask_cli import main
module = types.ModuleType("tracemask_cli.broken")
def command():
    raise ZeroDivisionError("ours")
module.command = command
sys.modules["tracemask_cli.broken"] = module
main.VERBS["broken"] = ("broken", "A verb with a fault.")
sys.argv = ["tracemask", "broken"]
main.main()
"""


def test_a_fault_of_ours_shows_its_traceback_and_does_not_exit_like_findings():
    done = subprocess.run([sys.executable, "-c", BROKEN_VERB], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" in done.stderr and "ZeroDivisionError: ours" in done.stderr
