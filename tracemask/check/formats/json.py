"""The report as one JSON document (schemas/finding.v1.schema.json)."""

from __future__ import annotations

import json
import re

from tracemask.check.report import Report
from tracemask.core.characters import HARMFUL

_HARMFUL = re.compile(f"[{HARMFUL}]")


def render(report: Report) -> str:
    """Sorted keys, two spaces, a newline at the end."""
    return text_of(report.to_json(), indent=2) + "\n"


def text_of(value: object, *, indent: int | None = None) -> str:
    """JSON with sorted keys; what could drive a terminal or reorder a line, and lone surrogates, are escaped."""
    text = json.dumps(value, sort_keys=True, indent=indent, allow_nan=False, ensure_ascii=False, default=number)
    return _HARMFUL.sub(lambda match: json.dumps(match[0])[1:-1], text)


def number(value: object) -> object:
    """numpy scalars in a finding's data."""
    item = getattr(value, "item", None)
    if item is None:
        raise TypeError(f"{type(value).__name__} in a finding's data")
    return item()
