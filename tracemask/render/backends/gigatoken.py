"""The fast backend: gigatoken, held to the reference by probes at load and by spot checks while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracemask.core.errors import MissingExtra, RenderError
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


class Gigatoken:
    """Same ids as `tokenizers`, or an error that names it: nothing falls back in silence."""

    name = "gigatoken"

    def __init__(self, source: bytes) -> None:
        try:
            import awkward
            from gigatoken import Tokenizer
        except ImportError:
            raise MissingExtra.named("gigatoken", "fast") from None
        self._awkward: Any = awkward
        self._reference = Tokenizers(source)
        self._tokenizer: Any = Tokenizer.from_json(source)
        self._count = 0
        self._compare(list(PROBES), self._encode(list(PROBES)))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; one in CHECK_EVERY is compared with the reference."""
        batch = list(texts)
        ids = self._encode(batch)
        picked = self._picked(batch)
        self._compare([batch[at] for at in picked], [ids[at] for at in picked])
        return ids

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """All ids in one array, and how many each text has; checked like encode_batch."""
        batch = list(texts)
        if not batch:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        encoded = self._tokenizer.encode_batch(batch, parallel=False)
        counts = self._awkward.to_numpy(self._awkward.num(encoded)).astype(np.int64)
        flat = self._awkward.to_numpy(self._awkward.flatten(encoded)).astype(np.int32)
        ends = np.cumsum(counts)
        picked = self._picked(batch)
        self._compare([batch[at] for at in picked], [flat[ends[at] - counts[at] : ends[at]].tolist() for at in picked])
        return flat, counts

    def _picked(self, batch: list[str]) -> list[int]:
        first = -self._count % CHECK_EVERY
        self._count += len(batch)
        return [at for at in range(first, len(batch), CHECK_EVERY) if len(batch[at]) <= CHECKED_CHARACTERS]

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return self._tokenizer.encode_batch_list(texts, parallel=False) if texts else []

    def _compare(self, texts: list[str], ids: list[list[int]]) -> None:
        if not texts:
            return
        for text, found, expected in zip(texts, ids, self._reference.encode_batch(texts), strict=True):
            if list(found) != expected:
                raise RenderError(
                    "TM923",
                    what=f"gigatoken and tokenizers give different ids for {text[:60]!r}",
                    fix="use backend='tokenizers'",
                )
