"""Text that is safe in a terminal, a log, an annotation: no control characters or direction marks. Knows no report."""

from __future__ import annotations

import re

from tracemask.core.characters import HARMFUL

_UNSAFE = re.compile(f"[{HARMFUL}]")


def neutral(text: str) -> str:
    """`text` with what could drive a terminal or reorder a line spelled out; newlines become ⏎."""
    return _UNSAFE.sub(_spell, text.replace("\n", "⏎").replace("\t", "→"))


def _spell(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plural(n: int, noun: str) -> str:
    """1 row, 2 rows, 1,000 rows."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
