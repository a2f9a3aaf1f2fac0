"""Run-length spans of a per-token column that rarely changes: policy versions. Knows no row."""

from __future__ import annotations

from typing import Any

import numpy as np


def to_spans(values: np.ndarray) -> list[dict[str, Any]]:
    """Half-open spans {start, end, version} of equal neighbours. Masked-out tokens hold -1 (integers) or ""."""
    if len(values) == 0:
        return []
    edges = np.flatnonzero(values[1:] != values[:-1]) + 1
    starts, ends = np.concatenate([[0], edges]), np.concatenate([edges, [len(values)]])
    spans = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        version = values[start].item()
        if version not in (-1, ""):
            spans.append({"start": start, "end": end, "version": str(version)})
    return spans


def from_spans(spans: list[dict[str, Any]], length: int) -> np.ndarray:
    """The per-token array again: int64 with -1 for none where every version is a whole number, else text with ""."""
    numeric = all(_is_number(span["version"]) for span in spans)
    if numeric:
        out: np.ndarray = np.full(length, -1, dtype=np.int64)
    else:
        width = max(len(span["version"]) for span in spans)
        out = np.full(length, "", dtype=f"<U{width}")
    for span in spans:
        out[span["start"] : span["end"]] = int(span["version"]) if numeric else span["version"]
    return out


def _is_number(version: str) -> bool:
    return version.isascii() and version.isdecimal() and str(int(version)) == version and len(version) < 19
