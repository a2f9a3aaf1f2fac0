"""Fixtures that every room shares: what fixtures/fetch.py brought. Knows folders, never a tokenizer class."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parent.parent / "fixtures" / ".cache"


def cached(name: str) -> Path:
    """The folder `name` of the fetched cache. Missing: a failure where CI is set, else a skip."""
    folder = CACHE / name
    if (folder / "receipt.json").is_file():
        return folder
    message = f"{folder} is missing: run `python fixtures/fetch.py`"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@pytest.fixture(scope="session")
def real_tokenizer() -> Callable[[str], Path]:
    """real_tokenizer("qwen3" | "llama3_1" | "deepseek_v3" | "gemma3" | "gptoss") -> folder with tokenizer.json."""
    return lambda name: cached(f"tokenizers/{name}")


@pytest.fixture(scope="session")
def real_templates() -> dict[str, str]:
    """Name of each chat template of the trl wheel (72 of them, without .jinja) -> its source."""
    return {path.stem: path.read_text(encoding="utf-8") for path in sorted(cached("templates").glob("*.jinja"))}


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """Folder of SmolLM2-135M-Instruct (float32, chat template included), loadable by transformers."""
    return cached("smollm2")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where CI is set, a missing package of the dev extra is a failure: nobody reads the skips of a green run."""
    report = yield
    if report.skipped and os.environ.get("CI") and not item.get_closest_marker("peers"):
        if "could not import" in str(report.longrepr):
            report.outcome, report.longrepr = "failed", f"{item.nodeid}: {report.longrepr}"
    return report
