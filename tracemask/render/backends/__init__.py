"""Engines that turn text into ids: one file and one line each. Knows no template and no control rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np

from tracemask.core.registry import Table


class Backend(Protocol):
    """Encodes whole strings with every added token active and no special token added around them."""

    name: str

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text. Same ids whatever else is in the batch."""
        ...

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(the ids of all texts one after the other, int32; how many each text has, int64)."""
        ...


def flattened(batch: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lists of ids as encode_flat gives them."""
    counts = np.fromiter(map(len, batch), np.int64, len(batch))
    return np.fromiter(chain.from_iterable(batch), np.int32, int(counts.sum())), counts


BackendFactory = Callable[[dict[str, Any], Any], Backend]
"""Builds a backend from a tokenizer.json (no padding, no truncation) and the reference on the same file.

Raises MissingExtra, RenderError.
"""

BACKENDS: Table[BackendFactory] = Table(
    "tokenizer backend",
    auto="tracemask.render.backends.wordcache:automatic",
    tokenizers="tracemask.render.backends.tokenizers:the_reference",
    wordcache="tracemask.render.backends.wordcache:asked",
    gigatoken="tracemask.render.backends.gigatoken:Gigatoken",
)
