"""Engines that turn text into ids: one file and one line each. Knows no template and no control rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tracemask.core.registry import Table


class Backend(Protocol):
    """Encodes whole strings with every added token active and no special token added around them."""

    name: str

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text. Same ids whatever else is in the batch."""
        ...


BackendFactory = Callable[[bytes], Backend]
"""Builds a backend from a tokenizer.json (no padding, no truncation). Raises MissingExtra, RenderError."""

BACKENDS: Table[BackendFactory] = Table(
    "tokenizer backend",
    tokenizers="tracemask.render.backends.tokenizers:Tokenizers",
    gigatoken="tracemask.render.backends.gigatoken:Gigatoken",
)
