"""Characters of a stranger's text that could drive a terminal, hide, or reorder a line. Knows no output."""

from __future__ import annotations

HARMFUL = (  # the inside of a regular expression's class; line feed and tab are left to whoever writes the line
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls
    "\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero-width and bidirectional marks, line separators
    "\ud800-\udfff\ufeff\ufff9-\ufffb"  # lone surrogates, byte order mark, annotations
    "\U000e0000-\U000e0fff"  # tags
)
