"""What a set of rows holds, as counts that add: per shard in receipts, in total in manifests and summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from tracemask.core.vocab import Author
from tracemask.store.row import Row


class Counts(BaseModel):
    """Additive facts; keys of the maps are the labels of core/vocab or drift causes."""

    rows: int = 0
    traces: int = 0
    tokens: int = 0
    sampled: int = 0
    authors: dict[str, int] = Field(default_factory=dict)  # tokens by author
    fidelity: dict[str, int] = Field(default_factory=dict)  # rows by fidelity
    drift: dict[str, int] = Field(default_factory=dict)  # turns by cause
    drifted_rows: int = 0
    truncated_rows: int = 0
    approximate_rows: int = 0
    forked_rows: int = 0

    def add_row(self, row: Row) -> None:
        """Counts `row`, but not its trace: several rows may share one."""
        scalars = row.scalars
        self.rows += 1
        self.tokens += len(row)
        if (sampled := row.get("sampled")) is not None:
            self.sampled += int(np.count_nonzero(sampled))
        if (author := row.get("author")) is not None:
            for code in Author:  # faster than bincount, which widens every token to 8 bytes
                if count := int(np.count_nonzero(author == code)):
                    _increase(self.authors, code.label, count)
        _increase(self.fidelity, str(scalars.get("fidelity") or "unknown"), 1)
        drifts = scalars.get("drifts") or ()
        for drift in drifts:
            _increase(self.drift, drift["cause"], 1)
        self.drifted_rows += bool(drifts)
        self.truncated_rows += bool(scalars.get("truncated"))
        self.approximate_rows += bool(scalars.get("approximate"))
        self.forked_rows += scalars.get("fork_row") is not None

    def add(self, other: Counts) -> None:
        """Adds `other` to this one."""
        for name, value in other:
            if isinstance(value, Mapping):
                mine: dict[str, Any] = getattr(self, name)
                for key, count in value.items():
                    _increase(mine, key, count)
            else:
                setattr(self, name, getattr(self, name) + value)


def _increase(counts: dict[str, int], key: str, by: int) -> None:
    counts[key] = counts.get(key, 0) + by
