"""Text that is safe in a terminal, a log, an annotation: no control characters or direction marks. Knows no report."""

from __future__ import annotations

import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def neutral(text: str) -> str:
    """`text` with what could drive a terminal or reorder a line spelled out; newlines become ⏎."""
    return _UNSAFE.sub(_spell, text.replace("\n", "⏎").replace("\t", "→"))


def _spell(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def plural(n: int, noun: str) -> str:
    """1 row, 2 rows, 1,000 rows."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
