"""The small tokenizer for the report room's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracemask.render.tokenizer import Tokenizer

SMALL = Path(__file__).parents[2] / "fixtures" / "tokenizers" / "small"


@pytest.fixture(scope="session")
def small() -> Tokenizer:
    return Tokenizer.load(SMALL)
