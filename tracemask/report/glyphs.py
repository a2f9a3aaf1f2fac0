"""Tokens as visible, harmless text: blanks shown, control characters and bidi marks spelled out. Knows no author."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from tracemask.core.errors import RenderError

NEWLINE = "⏎"
_VISIBLE = {" ": "·", "\t": "→", "\n": NEWLINE, "\r": "␍", "\x7f": "␡"}
_VISIBLE |= {chr(code): chr(0x2400 + code) for code in range(32) if chr(code) not in _VISIBLE}
# C1 controls, blanks other than the space, soft hyphen, zero-width and bidirectional marks, line separators, fillers,
# variation selectors, shorthand and musical controls, tag characters, noncharacters, surrogates.
_INVISIBLE = re.compile(
    "[\x80-\xa0\xad\u034f\u061c\u070f\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f\u2028-\u202f"
    "\u205f-\u206f\u2800\u3000\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff"
    "\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_TABLE = str.maketrans(_VISIBLE)
_MOST = 4  # marks over one letter, more than any writing needs: what is piled higher hides other lines
_MARKS = "\u0300-\u034e\u0350-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_PILED = re.compile(f"(?<=[{_MARKS}]{{{_MOST}}})[{_MARKS}]+")
_HANGING = re.compile(f"^[{_MARKS}]+")
_OPEN = re.compile(f"[{_MARKS}]+$")


class TokenTable(Protocol):
    """What a view needs of a tokenizer."""

    def id_bytes(self, token_id: int, /) -> bytes: ...

    @property
    def added(self) -> dict: ...


def visible(text: str) -> str:
    """`text` with every blank, control, zero-width or bidirectional character spelled as something that can be seen,
    and so the marks that are piled on one letter."""
    text = _INVISIBLE.sub(lambda match: _named(match[0]), text.translate(_TABLE))
    return text if text.isascii() else _PILED.sub(lambda match: _named(match[0]), text)


def _named(text: str) -> str:
    return "".join(f"‹U+{ord(character):04X}›" for character in text)


def _unpiled(text: str, piled: int) -> tuple[str, int]:
    """`text` behind a letter with `piled` marks, its first marks spelled where they are too many; and how many marks
    the letter at its end has then, those counted that are spelled."""
    first, last = _HANGING.match(text), _OPEN.search(text)
    hanging = 0 if first is None else first.end()
    kept = min(hanging, max(0, _MOST - piled))
    marks = piled + hanging if hanging == len(text) else 0 if last is None else len(last[0])
    return text[:kept] + _named(text[kept:hanging]) + text[hanging:], marks


def plain(text: str) -> str:
    """`visible`, with spaces as they are: one line of a message or a name."""
    return " ".join(visible(word) for word in text.split(" "))


def special(content: str) -> str:
    """The bracketed spelling of an added token: `<|im_end|>` becomes ⟦im_end⟧."""
    name = content[2:-2] if content.startswith("<|") and content.endswith("|>") and len(content) > 4 else content
    return f"⟦{visible(name)}⟧"


def _escaped(data: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in data)


def _incomplete(data: bytes) -> int:
    """How many bytes at the end of `data` begin a character that is not complete yet (0–3)."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        need = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return back if need > back else 0
    return 0


def spell(data: bytes) -> str:
    """Bytes as visible text; bytes that are no UTF-8 as \\xNN."""
    text = data.decode("utf-8", errors="surrogateescape")
    if not text.isprintable() or " " in text:
        text = re.sub("[\udc80-\udcff]", lambda match: _escaped(bytes([ord(match[0]) - 0xDC00])), text)
    return visible(text)


class Speller:
    """Spells the tokens of one row; a character split over several tokens appears once, on the token that completes it.

    tokenizer None: tokens are spelled as their ids.
    """

    def __init__(self, tokenizer: TokenTable | None) -> None:
        self._tokenizer = tokenizer
        self._bytes: dict[int, bytes] = {}
        self._added: dict[int, str] = {}
        if tokenizer is not None:
            self._added = {token_id: special(token.content) for token_id, token in tokenizer.added.items()}

    def _of(self, token_id: int) -> bytes:
        data = self._bytes.get(token_id)
        if data is None:
            assert self._tokenizer is not None
            try:
                data = self._tokenizer.id_bytes(token_id)
            except (KeyError, IndexError, RenderError):
                data = b""
                self._added[token_id] = f"⟦?{token_id}⟧"
            self._bytes[token_id] = data
        return data

    def spell(self, ids: Sequence[int] | np.ndarray) -> list[str]:
        """One visible string per token of `ids` [T]; "" for a token whose bytes only begin a character."""
        if self._tokenizer is None:
            return [f"⟨{int(token_id)}⟩" for token_id in ids]
        out: list[str] = []
        pending, piled = b"", 0
        for token_id in (int(token_id) for token_id in ids):
            data = b"" if token_id in self._added else self._of(token_id)
            name = self._added.get(token_id)
            if name is not None:
                if pending:
                    out[-1] += _escaped(pending)
                    pending = b""
                out.append(name)
                piled = 0
                continue
            data = pending + data
            open_bytes = _incomplete(data)
            pending = data[len(data) - open_bytes :] if open_bytes else b""
            done = data[: len(data) - open_bytes] if open_bytes else data
            text = spell(done) if done else ""
            if text and (piled or not text.isascii()):
                text, piled = _unpiled(text, piled)
            out.append(text)
        if pending and out:
            out[-1] += _escaped(pending)
        return out

    def text(self, ids: Iterable[int]) -> str:
        """The visible text of a run."""
        return "".join(self.spell(list(ids)))
