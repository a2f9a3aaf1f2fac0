"""A row: one sample as facts, read from a shard, a foreign dataset or straight from the renderer. Knows no weight."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(slots=True)
class Row:
    """Per-token `columns` (numpy, one length T, zero-copy views where the store allows) and `scalars` of one row.

    Column names: token_ids, author, role, part, origin, message, sampled, logprob, and optional ones; see docs of store.
    A column or scalar that the dataset lacks is absent, never zero.
    """

    index: int
    columns: dict[str, np.ndarray]
    scalars: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.columns["token_ids"])

    def __getitem__(self, column: str) -> np.ndarray:
        return self.columns[column]

    def get(self, column: str) -> np.ndarray | None:
        """The per-token column, or None where the dataset has none."""
        return self.columns.get(column)
