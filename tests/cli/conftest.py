"""The bundled rollouts as shards, made once by the command that people run; tests that damage them copy them first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parents[2] / "fixtures"


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "shards"
    words = ["convert", FIXTURES / "rollouts" / "harbour.jsonl", "--tokenizer", FIXTURES / "tokenizers" / "small"]
    command = [sys.executable, "-m", "tracemask_cli.main", *words, "-o", out, "--max-skipped", "1"]
    subprocess.run(list(map(str, command)), check=True, capture_output=True, timeout=120)
    return out
