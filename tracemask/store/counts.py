"""What a set of rows holds, as counts that add: per shard in receipts, in total in manifests and summaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from tracemask.core.vocab import Author
from tracemask.store.row import Row

_AT_ONCE = 8  # rows whose authors are counted together: what they take stays in the cache
_FREQUENT = (Author.ENVIRONMENT, Author.POLICY)  # looked for first: most rows have few others
_AUTHORS = tuple((int(author), author.label) for author in dict.fromkeys((*_FREQUENT, *Author)))


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

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Counts:
        """The counts of `rows`; consecutive rows of one trace_id are one trace, a row without one is its own."""
        facts = [row.scalars for row in rows]
        traces = [scalars.get("trace_id") for scalars in facts]
        drifts = [scalars.get("drifts") or () for scalars in facts]
        return cls(
            rows=len(rows),
            traces=sum(this is None or this != last for last, this in zip([None, *traces], traces, strict=False)),
            tokens=sum(map(len, rows)),
            sampled=sum(int(np.count_nonzero(row.columns["sampled"])) for row in rows if "sampled" in row.columns),
            authors=_authors([row.columns["author"] for row in rows if "author" in row.columns]),
            fidelity=_counted(str(scalars.get("fidelity") or "unknown") for scalars in facts),
            drift=_counted(drift["cause"] for found in drifts for drift in found),
            drifted_rows=sum(map(bool, drifts)),
            truncated_rows=sum(bool(scalars.get("truncated")) for scalars in facts),
            approximate_rows=sum(bool(scalars.get("approximate")) for scalars in facts),
            forked_rows=sum(scalars.get("fork_row") is not None for scalars in facts),
        )

    def add(self, other: Counts) -> None:
        """Adds `other` to this one."""
        for name, value in other:
            if isinstance(value, Mapping):
                mine: dict[str, Any] = getattr(self, name)
                for key, count in value.items():
                    _increase(mine, key, count)
            else:
                setattr(self, name, getattr(self, name) + value)


def _counted(labels: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(labels).items()))


def _authors(columns: list[np.ndarray]) -> dict[str, int]:
    """Tokens by author's label."""
    counts: Counter[str] = Counter()
    for start in range(0, len(columns), _AT_ONCE):
        joined = np.concatenate(columns[start : start + _AT_ONCE])
        left = len(joined)
        for code, label in _AUTHORS:  # faster than bincount, which widens every token to 8 bytes
            if not left:
                break
            if count := int(np.count_nonzero(joined == code)):
                counts[label] += count
                left -= count
    return dict(sorted(counts.items()))


def _increase(counts: dict[str, int], key: str, by: int) -> None:
    counts[key] = counts.get(key, 0) + by
