"""Two renderings of the same rollout, aligned: where ids, authors or weights differ. Knows rows, prints nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracemask.core.vocab import Author
from tracemask.report.glyphs import Speller, TokenTable
from tracemask.report.lanes import stored_weights
from tracemask.store.row import Row

if TYPE_CHECKING:
    from rich.text import Text

Kind = Literal["ids", "author", "weight"]
LIMIT = 4000  # tokens: a longer stretch without a common token run is shown as one change


@dataclass(frozen=True, slots=True)
class Change:
    """Tokens [a_start, a_end) of the first row stand against [b_start, b_end) of the second; detail says how."""

    kind: Kind
    a_start: int
    a_end: int
    b_start: int
    b_end: int
    detail: str = ""


def compare(a: Row, b: Row) -> list[Change]:
    """Every difference between two rows, in order of place: ids first, then authors and weights where ids agree."""
    changes: list[Change] = []
    for tag, a0, a1, b0, b1 in align(np.asarray(a["token_ids"]), np.asarray(b["token_ids"])):
        if tag == "equal":
            changes += _same_ids(a, b, a0, a1, b0)
        else:
            changes.append(Change("ids", a0, a1, b0, b1))
    return sorted(changes, key=lambda change: (change.a_start, change.b_start, change.kind))


def align(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[str, int, int, int, int]]:
    """Opcodes ("equal" or "replace", a0, a1, b0, b1) that cover both sequences once, common ends taken first."""
    shorter = min(len(a), len(b))
    same = a[:shorter] == b[:shorter]
    head = shorter if same.all() else int(np.argmin(same))
    rest = shorter - head
    back = a[len(a) - rest :][::-1] == b[len(b) - rest :][::-1]
    tail = rest if back.all() else int(np.argmin(back))
    if head:
        yield "equal", 0, head, 0, head
    a_end, b_end = len(a) - tail, len(b) - tail
    if head < a_end or head < b_end:
        if a_end - head > LIMIT or b_end - head > LIMIT:
            yield "replace", head, a_end, head, b_end
        else:
            matcher = SequenceMatcher(None, a[head:a_end].tolist(), b[head:b_end].tolist(), autojunk=False)
            for tag, a0, a1, b0, b1 in matcher.get_opcodes():
                yield ("equal" if tag == "equal" else "replace"), head + a0, head + a1, head + b0, head + b1
    if tail:
        yield "equal", a_end, len(a), b_end, len(b)


def _same_ids(a: Row, b: Row, a0: int, a1: int, b0: int) -> Iterator[Change]:
    size = a1 - a0
    authors = a.get("author"), b.get("author")
    if authors[0] is not None and authors[1] is not None:
        left, right = np.asarray(authors[0][a0:a1]), np.asarray(authors[1][b0 : b0 + size])
        for start, end in _stretches(left, right):
            detail = f"{Author(int(left[start])).label} → {Author(int(right[start])).label}"
            yield Change("author", a0 + start, a0 + end, b0 + start, b0 + end, detail)
    weights_a, weights_b = stored_weights(a), stored_weights(b)
    for name in dict.fromkeys((*weights_a, *weights_b)):
        zero = np.zeros(size, np.float32)
        left = weights_a[name][a0:a1] if name in weights_a else zero
        right = weights_b[name][b0 : b0 + size] if name in weights_b else zero
        for start, end in _stretches(left, right):
            detail = f"{name} {float(left[start]):g} → {float(right[start]):g}"
            yield Change("weight", a0 + start, a0 + end, b0 + start, b0 + end, detail)


def _stretches(left: np.ndarray, right: np.ndarray) -> Iterator[tuple[int, int]]:
    """Half-open ranges where both differ and neither changes its value."""
    differ = left != right
    if not differ.any():
        return
    cut = np.flatnonzero((differ[1:] != differ[:-1]) | (left[1:] != left[:-1]) | (right[1:] != right[:-1])) + 1
    bounds = np.concatenate(([0], cut, [len(left)]))
    for start, end in zip(bounds[:-1], bounds[1:], strict=True):
        if differ[start]:
            yield int(start), int(end)


def lines(a: Row, b: Row, changes: list[Change], tokenizer: TokenTable | None, *, context: int = 8) -> Iterator[Text]:
    """Coloured lines for a terminal: − the first row, + the second, ids in brackets."""
    from rich.text import Text

    speller = Speller(tokenizer)
    for change in changes:
        before = speller.text(a["token_ids"][max(0, change.a_start - context) : change.a_start].tolist())
        yield Text(f"@ token {change.a_start} / {change.b_start}  {change.kind} {change.detail}".rstrip(), style="cyan")
        if before:
            yield Text(f"    …{before}", style="dim")
        if change.kind == "ids":
            for sign, row, start, end, style in (
                ("−", a, change.a_start, change.a_end, "red"),
                ("+", b, change.b_start, change.b_end, "green"),
            ):
                ids = row["token_ids"][start:end].tolist()
                more = f" … {len(ids) - 40} more" if len(ids) > 40 else ""
                if ids:
                    spelled = speller.text(ids[:40])
                    yield Text(f"  {sign} {spelled}  [{' '.join(map(str, ids[:40]))}]{more}", style=style)
        else:
            ids = a["token_ids"][change.a_start : min(change.a_end, change.a_start + 40)].tolist()
            yield Text(f"  ~ {speller.text(ids)}  ({change.a_end - change.a_start} tokens)", style="yellow")
