"""A change of what logs become is seen, and raises READER_VERSION: half a conversion must not meet another reader."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tracemask.core.errors import TracemaskError
from tracemask.store import convert
from tracemask.trace.formats import FORMATS
from tracemask.trace.reading import READER_VERSION, read_traces

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures" / "traces" / "formats"
KNOWN = Path(__file__).with_name("known_traces.json")


def digest(path: Path, format: str) -> str:
    """16 hex digits of the traces of one log, "" where there is none, or the code of its refusal."""
    try:
        traces = [trace.model_dump_json() for trace in read_traces(str(path), format=format)]
    except TracemaskError as error:
        return error.code
    return hashlib.sha256("\n".join(traces).encode()).hexdigest()[:16] if traces else ""


def found() -> dict[str, str]:
    logs = [path for folder in sorted(FIXTURES.iterdir()) for path in sorted(folder.iterdir())]
    digests = {f"{log.parent.name}/{log.name}": digest(log, log.parent.name) for log in logs}
    with TemporaryDirectory() as folder:
        archive = shutil.make_archive(f"{folder}/log", "zip", FIXTURES / "inspect")
        digests["inspect/"] = digest(Path(archive).rename(Path(folder) / "log.eval"), "inspect")
    return digests


def test_logs_become_the_traces_that_this_version_of_the_reader_makes() -> None:
    """Where it fails on purpose: raise READER_VERSION, then `python tests/trace/test_trace_version.py`."""
    assert {"version": READER_VERSION, "logs": found()} == json.loads(KNOWN.read_text(encoding="utf-8"))


def test_every_format_is_among_them() -> None:
    assert {log.split("/")[0] for log, traces in found().items() if len(traces) == 16} == set(FORMATS)


def test_another_version_of_the_reader_does_not_continue_a_conversion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, tokenizer = ROOT / "fixtures" / "rollouts" / "harbour.jsonl", ROOT / "fixtures" / "tokenizers" / "small"
    render = convert.RenderConfig(tokenizer=str(tokenizer))
    convert.convert(str(log), str(tmp_path / "out"), render=render, max_skipped=1)
    monkeypatch.setattr(convert, "READER_VERSION", "another")
    with pytest.raises(TracemaskError, match="TM933"):
        convert.convert(str(log), str(tmp_path / "out"), render=render, max_skipped=1)


if __name__ == "__main__":
    known = {"version": READER_VERSION, "logs": found()}
    KNOWN.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
