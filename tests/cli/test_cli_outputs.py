"""What a verb writes for people and machines: a file is there whole or not at all, and what lay there before stays."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "fixtures" / "tokenizers" / "small"
WORDS = [sys.executable, "-m", "tracemask_cli.main"]
WRITERS = {
    "report": ["report", "{shards}", "-t", SMALL, "-o", "{out}"],
    "sarif": ["check", "{shards}", "-t", SMALL, "-f", "sarif", "-o", "{out}"],
    "html": ["check", "{shards}", "-t", SMALL, "-f", "html", "-o", "{out}"],
    "baseline": ["check", "{shards}", "-t", SMALL, "--write-baseline", "{out}"],
    "svg": ["show", "{shards}", "-t", SMALL, "--svg", "{out}"],
}


def tracemask(*arguments: object, most: int | None = None) -> subprocess.CompletedProcess[str]:
    """most: bytes that any file may have, as on a disk that is almost full."""
    limit = None if most is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    words = [*WORDS, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, preexec_fn=limit)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_the_file_of_before(shards, tmp_path, name):
    out = tmp_path / "out.txt"
    words = [str(word).format(shards=shards, out=out) for word in WRITERS[name]]
    for before in (None, "of before"):
        if before is not None:
            out.write_text(before)
        done = tracemask(*words, most=512)
        assert done.returncode == 2
        assert f"{out}: TM932 File too large" in done.stderr and "fix:" in done.stderr
        assert [each.name for each in tmp_path.iterdir()] == ([] if before is None else ["out.txt"])
    assert out.read_text() == "of before"
    assert tracemask(*words).returncode == 0
    assert out.stat().st_size > 512


def test_a_full_disk_leaves_no_half_of_a_repaired_copy(tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}\n' * 200)
    out = tmp_path / "fixed" / "rows.jsonl"
    done = tracemask("fix", rows, "-o", out, most=4096)
    assert done.returncode == 2 and "TM932 File too large" in done.stderr
    assert list(out.parent.iterdir()) == []
    assert tracemask("fix", rows, "-o", out).returncode == 0
    assert len(out.read_text().splitlines()) == 200


def test_a_report_goes_behind_a_url_too(shards):
    code = "import sys, fsspec; from tracemask_cli import main\n"
    code += "sys.argv = ['tracemask', 'check', sys.argv[1], '-f', 'json', '-o', 'memory://reports/check.json']\n"
    code += "try: main.main()\nexcept SystemExit as end: assert not end.code\n"
    code += "print(fsspec.filesystem('memory').cat_file('/reports/check.json').decode())"
    done = subprocess.run([sys.executable, "-c", code, str(shards)], capture_output=True, text=True, timeout=120)
    assert done.stdout.startswith("{"), done.stderr
