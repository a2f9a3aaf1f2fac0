"""What a set of rows holds, as counts that add: per shard in receipts, in total in manifests and summaries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from tracemask.core.vocab import Author
from tracemask.store.row import Row

_AT_ONCE = 8  # rows whose authors are counted together: what they take stays in the cache
_AUTHORS = tuple((int(author), author.label) for author in Author)


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
    def of(cls, rows: Iterable[Row]) -> Counts:
        """The counts of `rows`; consecutive rows of one trace_id are one trace, a row without one is its own."""
        out: Counter[str] = Counter()
        maps: dict[str, Counter[str]] = {"authors": Counter(), "fidelity": Counter(), "drift": Counter()}
        authors: list[np.ndarray] = []
        last: str | None = None
        for row in rows:
            scalars = row.scalars
            trace = scalars.get("trace_id")
            out["traces"] += trace is None or trace != last
            last = trace
            out["rows"] += 1
            out["tokens"] += len(row)
            if (sampled := row.get("sampled")) is not None:
                out["sampled"] += int(np.count_nonzero(sampled))
            if (author := row.get("author")) is not None:
                authors.append(author)
                if len(authors) == _AT_ONCE:
                    _count_authors(authors, maps["authors"])
            maps["fidelity"][str(scalars.get("fidelity") or "unknown")] += 1
            drifts = scalars.get("drifts") or ()
            maps["drift"].update(drift["cause"] for drift in drifts)
            out["drifted_rows"] += bool(drifts)
            out["truncated_rows"] += bool(scalars.get("truncated"))
            out["approximate_rows"] += bool(scalars.get("approximate"))
            out["forked_rows"] += scalars.get("fork_row") is not None
        _count_authors(authors, maps["authors"])
        return cls.model_validate({**out, **{name: dict(sorted(found.items())) for name, found in maps.items()}})

    def add(self, other: Counts) -> None:
        """Adds `other` to this one."""
        for name, value in other:
            if isinstance(value, Mapping):
                mine: dict[str, Any] = getattr(self, name)
                for key, count in value.items():
                    _increase(mine, key, count)
            else:
                setattr(self, name, getattr(self, name) + value)


def _count_authors(rows: list[np.ndarray], counts: Counter[str]) -> None:
    """Adds the tokens of `rows` by author, and empties the list."""
    joined = np.concatenate(rows) if rows else np.zeros(0, np.uint8)
    rows.clear()
    left = len(joined)
    for code, label in _AUTHORS:  # faster than bincount, which widens every token to 8 bytes
        if not left:
            return
        if count := int(np.count_nonzero(joined == code)):
            counts[label] += count
            left -= count


def _increase(counts: dict[str, int], key: str, by: int) -> None:
    counts[key] = counts.get(key, 0) + by
