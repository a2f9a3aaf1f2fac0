"""A row: one sample as facts, read from a shard, a foreign dataset or straight from the renderer. Knows no weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class Row:
    """Per-token `columns` (numpy, one length T, zero-copy read-only views where the store allows) and `scalars`.

    Column names: token_ids, author, role, part, origin, message, sampled, logprob, and optional ones; see store/schema.
    Index t of every column speaks of token t; nothing is shifted. A column or scalar that the dataset lacks is absent,
    a scalar that is missing in this row is None; neither is ever zero.
    """

    index: int
    columns: dict[str, np.ndarray]
    scalars: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["token_ids"])

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    def get(self, column: str) -> np.ndarray | None:
        """The per-token column, or None where the dataset has none."""
        return self.columns.get(column)
