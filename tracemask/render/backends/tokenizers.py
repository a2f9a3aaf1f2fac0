"""The reference backend: the `tokenizers` package. Every other backend must give the same ids as this one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracemask.core.errors import RenderError
from tracemask.render.backends import flattened

AT_ONCE = 128
"""Texts in one call of the package: its encodings take a hundred bytes a token, and stay in the cache so."""


class Tokenizers:
    """encode_batch_fast on a tokenizer.json; `offsets` where character positions cannot be derived from bytes."""

    name = "tokenizers"

    def __init__(self, source: bytes) -> None:
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_buffer(source)
        except Exception as error:  # the package raises a bare Exception for a bad file
            raise RenderError("TM923", what=f"tokenizer.json is not readable: {error}") from None

    @property
    def model(self) -> Any:
        """The package's model: merges within one word."""
        return self._tokenizer.model

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        batch = list(texts)
        ids: list[list[int]] = []
        for at in range(0, len(batch), AT_ONCE):
            encoded = self._tokenizer.encode_batch_fast(batch[at : at + AT_ONCE], add_special_tokens=False)
            ids += [item.ids for item in encoded]
        return ids

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """All ids in one array, and how many each text has."""
        return flattened(self.encode_batch(texts))

    def offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of `text` and the half-open character range of each."""
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return encoding.ids, encoding.offsets


def the_reference(_: dict[str, Any], reference: Tokenizers) -> Tokenizers:
    """The entry of the backends' table: the reference itself."""
    return reference
