"""What the documents say is so: commands run, links resolve, Python examples execute."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```", re.S | re.M)
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def blocks(page: Path, language: str) -> list[str]:
    """Fenced blocks of one language; a block marked `skip` is prose, not a promise."""
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [text for name, rest, text in found if name == language and "skip" not in rest]


def commands(page: Path) -> list[str]:
    """Lines that begin with `$ ` in console blocks, continuation lines joined."""
    out: list[str] = []
    for block in blocks(page, "console"):
        joined = block.replace("\\\n", " ")
        out += [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]
    return out


def printed(page: Path) -> list[str]:
    """Lines that a page shows as output: below commands in console blocks, and `text` blocks."""
    console = "".join(blocks(page, "console")).replace("\\\n", " ")
    shown = [line for line in console.splitlines() if not line.startswith("$ ")]
    return [line for line in [*shown, *"\n".join(blocks(page, "text")).splitlines()] if line.strip(" …")]


@pytest.fixture
def place(tmp_path):
    """A folder that looks like the project's root from inside, and is not it."""
    for name in ("fixtures", "examples", "schemas", "docs", "bench", "Makefile", "pyproject.toml", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.parametrize("name", [name for name, page in zip(NAMES, PAGES, strict=True) if commands(page)])
def test_documented_commands_run(name, place):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "NO_COLOR": "1", "COLUMNS": "80"}
    said = ""
    for command in commands(ROOT / name):
        if command.startswith(("pip ", "git ", "cd ")):
            continue
        if command.startswith("make "):
            command = f"make -n {command[5:]} VENV=/nowhere"
        shell = ["bash", "-o", "pipefail", "-c", command]
        done = subprocess.run(shell, cwd=place, env=environment, capture_output=True, text=True, timeout=240)
        allowed = (0, 1) if re.match(r"tracemask (check|diff)\b", command) else (0,)
        assert done.returncode in allowed, f"{name}: $ {command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        assert "Traceback" not in done.stderr, f"{name}: $ {command}\n{done.stderr}"
        said += done.stdout + done.stderr
    said = " ".join(said.split())
    for line in printed(ROOT / name):
        assert " ".join(line.split()) in said, f"{name} shows what no command of it prints: {line}"


@pytest.mark.parametrize("name", NAMES)
def test_shell_blocks_are_console_blocks_so_that_they_are_run(name):
    for language in ("bash", "sh", "shell", "zsh"):
        assert not [block for block in blocks(ROOT / name, language) if "tracemask " in block]


@pytest.mark.parametrize("name", NAMES)
def test_links_inside_the_project_resolve(name):
    page = ROOT / name
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{name}: {target}"


@pytest.mark.parametrize("name", [name for name, page in zip(NAMES, PAGES, strict=True) if blocks(page, "python")])
def test_python_examples_run(name, place):
    """A page's Python blocks are one script, run in order."""
    script = "\n".join(blocks(ROOT / name, "python"))
    done = subprocess.run([sys.executable, "-c", script], cwd=place, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, f"{name}:\n{script}\n{done.stderr[-3000:]}"


def test_no_page_names_a_machine():
    for page in PAGES:
        assert not re.search(r"/(?:root|work|home/\w+)/", page.read_text(encoding="utf-8")), page
