"""What the README shows under a command is what the command prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_readme_shows_what_the_commands_print(tmp_path):
    (tmp_path / "fixtures").symlink_to(ROOT / "fixtures")
    environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1"}
    tracemask = str(Path(sys.executable).parent / "tracemask")
    compared = 0
    for block in re.findall(r"^```console\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S | re.M):
        for command, shown in re.findall(r"^\$ tracemask ([^\n]*)\n((?:(?!\$ )[^\n]*\n)+)", block, re.M):
            done = subprocess.run(
                [tracemask, *command.split()],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
            )
            printed = [line.rstrip() for line in done.stdout.splitlines()]
            assert printed == shown.splitlines(), f"$ tracemask {command}"
            compared += 1
    assert compared
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150
