"""The fast backend: gigatoken, held to the reference by probes at load and by spot checks while it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from tracemask.core.errors import MissingExtra
from tracemask.render.backends.probes import PROBES, Comparison
from tracemask.render.backends.tokenizers import Tokenizers


class Gigatoken:
    """Same ids as `tokenizers`, or an error that names it: nothing falls back in silence."""

    name = "gigatoken"

    def __init__(self, source: dict[str, Any], reference: Tokenizers) -> None:
        try:
            import awkward
            from gigatoken import Tokenizer
        except ImportError:
            raise MissingExtra.named("gigatoken", "fast") from None
        self._awkward: Any = awkward
        self._tokenizer: Any = Tokenizer.from_json(orjson.dumps(source))
        self._comparison = Comparison(self.name, reference)
        self._comparison.all(PROBES, self._tokenizer.encode_batch_list(list(PROBES), parallel=False))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; some are compared with the reference."""
        flat, counts = self.encode_flat(texts)
        return [ids.tolist() for ids in np.split(flat, np.cumsum(counts)[:-1])] if len(texts) else []

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """All ids in one array, and how many each text has; some are compared with the reference."""
        batch = list(texts)
        if not batch:
            return np.zeros(0, np.int32), np.zeros(0, np.int64)
        encoded = self._tokenizer.encode_batch(batch, parallel=False)
        counts = self._awkward.to_numpy(self._awkward.num(encoded)).astype(np.int64)
        flat = self._awkward.to_numpy(self._awkward.flatten(encoded)).astype(np.int32)
        self._comparison.spot(batch, flat, counts)
        return flat, counts
