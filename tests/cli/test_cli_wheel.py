"""The wheel installs our two packages and their data, nothing under a stranger's name; without extras it audits."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "fixtures/tokenizers/small"
HEAVY = ("torch", "transformers", "safetensors", "ray", "gigatoken")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    hatchling = pytest.importorskip("hatchling.build", reason="pip install hatchling")
    out, before = tmp_path_factory.mktemp("wheel"), Path.cwd()
    os.chdir(ROOT)
    try:
        return out / hatchling.build_wheel(str(out))
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The wheel's files in a folder of their own, as an installer lays them."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A verb from the wheel alone, with the packages of the extras out of reach."""
    code = (
        f"import sys; sys.path.insert(0, {str(installed)!r}); sys.path = [p for p in sys.path if p != {str(ROOT)!r}]\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.partition('.')[0] in {HEAVY!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        f"sys.argv = ['tracemask', *{arguments!r}]\n"
        "import tracemask, tracemask_cli\n"
        f"assert all(m.__file__.startswith({str(installed)!r}) for m in (tracemask, tracemask_cli))\n"
        "from tracemask_cli.main import main\n"
        "main()\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_only_our_two_packages_are_installed(installed):
    names = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert names == {"tracemask", "tracemask_cli"}


def test_every_data_file_of_the_packages_is_in_the_wheel(installed):
    for package in (ROOT / "tracemask", ROOT / "cli/tracemask_cli"):
        files = {path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
        missing = {str(path) for path in files if not (installed / path.relative_to(package.parent)).is_file()}
        assert not missing
    assert (installed / "tracemask/recipe/presets/grpo.toml").is_file()
    assert (installed / "tracemask/report/templates/report.css").is_file()
    assert (installed / "tracemask/py.typed").is_file()  # without it no type checker reads our annotations


def test_the_base_install_needs_none_of_the_extras_packages():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert not [line for line in project["dependencies"] if line.startswith(HEAVY)]


def test_convert_check_show_and_report_work_from_the_wheel_without_extras(installed, tmp_path):
    log, tokenizer = str(ROOT / "fixtures/rollouts/harbour.jsonl"), ("--tokenizer", str(SMALL))
    for arguments in (
        ("convert", log, *tokenizer, "-o", "shards", "--max-skipped", "1"),
        ("check", "shards", *tokenizer),
        ("show", "shards", *tokenizer),
        ("report", "shards", *tokenizer, "--recipe", "grpo", "-o", "report.html"),
    ):
        done = run(installed, tmp_path, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "<html" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_verb_that_needs_an_extra_names_it(installed, tmp_path):
    done = run(installed, tmp_path, "train", "shards", "--init-tiny")
    assert done.returncode == 2
    assert "TM903 torch is not installed" in done.stderr and "tracemask[train]" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mistyped_verb_is_answered_with_the_near_one(installed, tmp_path):
    done = run(installed, tmp_path, "chekc", "shards")
    assert done.returncode == 2 and "Did you mean 'check'?" in done.stderr
