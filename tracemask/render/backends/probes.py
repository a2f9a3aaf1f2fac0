"""Texts, and the comparison, that hold a fast backend to the reference: at load and while it runs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracemask.core.errors import RenderError
from tracemask.render.backends.tokenizers import Tokenizers

CHECK_EVERY = 256
"""One text in so many is encoded by the reference too (the first of each batch counts on)."""

CHECKED_CHARACTERS = 2000
"""Longer texts are not spot-checked: the check must not cost what the backend saves."""

PROBES = (
    "",
    " ",
    "\n",
    "\n\n  \n",
    "Hello world",
    " leading and trailing ",
    "tabs\tand\r\nlines\r\n\r\n",
    "I'm, you'll, WE'VE, it's 'quoted'",
    "0 12 345 6789 1,234,567.89e-10",
    "def f(x: int) -> list[int]:\n    return [x ** 2 for _ in range(10)]\n",
    '{"name": "search", "arguments": {"query": "a \\"b\\" \\u00e9", "n": [1, 2.5, null, true]}}',
    "café cafe\u0301 naïve Å Å ﬁ ①",
    "東京 こんにちは 你好 한국어 Ελλάδα Москва עברית العربية हिन्दी",
    "👩‍👩‍👧‍👦 🏳️‍🌈 \u200b\ufeff \u00a0 \u2028 \u3000x",
    "<b>bold</b> <|x|> [INST] </s> <think>\nso\n</think>\n\n<tool_call>\n{}\n</tool_call>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" + " " * 40 + "=" * 40,
    "\x00\x01\x7f control \x1b[31mred\x1b[0m",
)


class Comparison:
    """Compares a backend's ids with the reference's; a difference is an error that names the other backend."""

    def __init__(self, name: str, reference: Tokenizers) -> None:
        self._name = name
        self._reference = reference
        self._count = 0

    def spot(self, texts: Sequence[str], flat: np.ndarray, counts: np.ndarray) -> None:
        """Compares one text in CHECK_EVERY, counted over all calls. Raises RenderError TM923."""
        first = -self._count % CHECK_EVERY
        self._count += len(texts)
        if first < len(texts):
            ends = np.cumsum(counts)
            picked = [at for at in range(first, len(texts), CHECK_EVERY) if len(texts[at]) <= CHECKED_CHARACTERS]
            self.all([texts[at] for at in picked], [flat[ends[at] - counts[at] : ends[at]].tolist() for at in picked])

    def all(self, texts: Sequence[str], ids: Sequence[Sequence[int]]) -> None:
        """Compares every text. Raises RenderError TM923."""
        for text, found, expected in zip(texts, ids, self._reference.encode_batch(texts), strict=True):
            if list(found) != expected:
                raise RenderError(
                    "TM923",
                    what=f"{self._name} and tokenizers give different ids for {text[:60]!r}",
                    fix="use backend='tokenizers'",
                )
