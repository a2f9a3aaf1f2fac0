"""`tracemask train` and `tracemask score` as typed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from train_models import rollouts, tiny, write

from tracemask_cli.main import main


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("cli") / "shards", rollouts(groups=2))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """Types a command; returns (exit code, stdout, stderr)."""

    def typed(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tracemask", *words])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        return code, out, err

    return typed


def test_three_steps_are_trained_shown_and_kept(data: str, tmp_path: Path, run: Any) -> None:
    code, out, _ = run("train", data, "--init-tiny", "--steps", "3", "--recipe", "grpo", "-o", str(tmp_path / "run"))
    assert code == 0
    assert "3 steps" in out
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()


def test_running_a_finished_run_again_says_that_nothing_was_left(data: str, tmp_path: Path, run: Any) -> None:
    words = ("train", data, "--init-tiny", "--recipe", "grpo", "--no-export", "-o", str(tmp_path / "run"), "--steps")
    run(*words, "1")
    code, out, _ = run(*words, "1")
    assert code == 0
    assert "nothing to do: 1 steps are done already" in out
    _, out, _ = run(*words, "3", "--json")
    assert [json.loads(out)[name] for name in ("steps", "taken")] == [3, 2]
    _, out, _ = run(*words, "2")
    assert "nothing to do: 3 steps" in out


def test_a_dry_run_prints_the_plan_and_trains_nothing(data: str, tmp_path: Path, run: Any) -> None:
    words = ("train", data, "--init-tiny", "--epochs", "2", "-o", str(tmp_path / "run"), "--dry-run")
    code, out, _ = run(*words, "--json")
    plan = json.loads(out)
    assert (code, plan["steps"], plan["groups"]) == (0, 2, 2)
    assert plan["slots"] < plan["tokens"]
    code, out, _ = run(*words)
    assert "denominator" in out
    assert not (tmp_path / "run").exists()


def test_scores_are_written_as_the_column_asked_for(data: str, tmp_path: Path, run: Any) -> None:
    tiny("llama", norms="own", dtype=torch.float32).save_pretrained(tmp_path / "model")
    words = ("score", data, "--model", str(tmp_path / "model"), "--as", "ref", "-o", str(tmp_path / "ref"), "--json")
    code, out, _ = run(*words)
    found = json.loads(out)
    assert (code, found["column"], found["rows"]) == (0, "ref_logprob", 10)
    assert found["compared"] == found["tokens"] > 0


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("train", "DATA", "--model", "/nowhere"), "TM901"),
        (("train", "DATA", "--model", "bareword"), "TM901"),
        (("train", "DATA", "--model", "some/name"), "TM901"),
        (("train", "DATA"), "TM900"),
        (("train", "/nowhere", "--init-tiny"), "TM901"),
        (("train", "DATA", "--init-tiny", "--recipe", "grop"), "TM902"),
        (("train", "DATA", "--init-tiny", "--packing", "sideways"), "TM900"),
        (("train", "DATA", "--init-tiny", "--attention", "flex"), "TM960"),
        (("score", "DATA", "--model", "/nowhere", "-o", "OUT", "--as", "better"), "TM900"),
    ],
)
def test_what_cannot_run_is_one_coded_line_and_exit_2(
    data: str, tmp_path: Path, run: Any, words: tuple[str, ...], code: str
) -> None:
    spelled = [{"DATA": data, "OUT": str(tmp_path / "out")}.get(word, word) for word in words]
    spelled += ["-o", str(tmp_path / "run")] if words[0] == "train" else []
    exit_code, _, err = run(*spelled)
    assert exit_code == 2
    assert code in err
    assert "Traceback" not in err
    assert "Value error" not in err


def test_help_imports_no_torch(run: Any) -> None:
    import subprocess

    script = "import sys; sys.argv=['tracemask','train','--help']; from tracemask_cli.main import main\n"
    script += "try: main()\nexcept SystemExit: pass\n"
    script += "assert not {'torch','transformers','pyarrow'} & set(sys.modules), set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=60)
