"""The pre-commit hook and the GitHub workflow of the docs, as far as they run here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from check_make import SMALL
from typer.testing import CliRunner

from tracemask_cli.main import app

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
LOG = ROOT / "fixtures" / "rollouts" / "harbour.jsonl"


def run(words):
    return CliRunner().invoke(app, words, catch_exceptions=False)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project as the docs assume it: data/rollouts.jsonl and data/tokenizer."""
    (tmp_path / "data").mkdir()
    good = LOG.read_bytes().splitlines(keepends=True)[:8]
    (tmp_path / "data" / "rollouts.jsonl").write_bytes(b"".join(good))
    (tmp_path / "data" / "tokenizer").symlink_to(SMALL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def snippets(name):
    text = (ROOT / "docs" / "howto" / name).read_text(encoding="utf-8")
    return [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.S | re.M)]


def test_the_hook_runs_check_on_the_files_it_matches(project):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert {"id", "name", "entry", "language"} <= set(hook)
    assert re.search(hook["files"], "data/rollouts.jsonl") and not re.search(hook["files"], "src/a.py")
    program, *words = shlex.split(hook["entry"])
    (_, configuration) = snippets("ci.md")
    (used,) = configuration["repos"][0]["hooks"]
    assert program == "tracemask" and used["id"] == hook["id"]
    assert re.search(used["files"], "data/rollouts.jsonl")
    result = run([*words, *used["args"], "data/rollouts.jsonl"])
    assert result.exit_code in (0, 1) and "rules ran" in result.stdout


def test_the_workflow_s_own_commands_run(project):
    (workflow, _) = snippets("ci.md")
    steps = workflow["jobs"]["check"]["steps"]
    commands = [step["run"].replace("|| true", "") for step in steps if "tracemask check" in step.get("run", "")]
    assert len(commands) == 2
    for command in commands:
        program, *words = shlex.split(command)
        assert program == "tracemask" and run(words).exit_code in (0, 1)
    assert (project / "check.sarif").is_file()
    uploads = [step["with"]["sarif_file"] for step in steps if "upload-sarif" in step.get("uses", "")]
    assert uploads == ["check.sarif"]
