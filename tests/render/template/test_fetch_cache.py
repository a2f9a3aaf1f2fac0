"""fixtures/fetch.py: a folder counts as fetched only whole, in its version, and with its bytes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[3] / "fixtures" / "fetch.py"


@pytest.fixture(scope="module")
def fetch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fixtures_fetch", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(fetch: ModuleType, tmp_path: Path) -> Path:
    made = tmp_path / "made"
    made.mkdir()
    (made / "a.json").write_text("{}")
    fetch.install(made, tmp_path / "cache" / "thing", version="1")
    return tmp_path / "cache" / "thing"


def test_an_installed_folder_is_complete_in_its_version_only(fetch: ModuleType, folder: Path) -> None:
    assert fetch.complete(folder, version="1", hashes=True)
    assert not fetch.complete(folder, version="2", hashes=False)
    assert not fetch.complete(folder.parent / "other", version="1", hashes=False)


def test_a_file_of_another_size_is_noticed_and_other_bytes_of_that_size_on_request(
    fetch: ModuleType, folder: Path
) -> None:
    (folder / "a.json").write_text("[]")
    assert fetch.complete(folder, version="1", hashes=False)
    assert not fetch.complete(folder, version="1", hashes=True)
    (folder / "a.json").write_text("[1]")
    assert not fetch.complete(folder, version="1", hashes=False)
    (folder / "a.json").unlink()
    assert not fetch.complete(folder, version="1", hashes=False)


def test_a_failing_registry_client_is_named_with_its_last_words_and_exit_code_2(tmp_path: Path) -> None:
    copy = tmp_path / "fixtures" / "fetch.py"
    copy.parent.mkdir()
    copy.write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    client = tmp_path / "bin" / "npm"
    client.parent.mkdir()
    client.write_text("#!/bin/sh\necho no such registry >&2\nexit 3\n")
    client.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(copy), "--only", "tokenizers"],
        capture_output=True,
        text=True,
        env={"PATH": f"{client.parent}:/bin:/usr/bin"},
    )
    assert done.returncode == 2
    assert "no such registry" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "fixtures" / ".cache").glob("tokenizers/*"))
