"""The report as one JSON document (schemas/finding.v1.schema.json)."""

from __future__ import annotations

import json

from tracemask.check.report import Report


def render(report: Report) -> str:
    """Sorted keys, two spaces, a newline at the end."""
    return (
        json.dumps(report.to_json(), sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False, default=number)
        + "\n"
    )


def number(value: object) -> object:
    """numpy scalars in a finding's data."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__name__} in a finding's data")
    return item()
