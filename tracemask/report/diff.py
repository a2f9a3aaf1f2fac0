"""Two renderings of the same rollout, aligned: where ids, authors or weights differ. Knows rows, prints nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tracemask.core.vocab import Author
from tracemask.report.glyphs import Speller, TokenTable, visible
from tracemask.report.lanes import codes, stored_weights, whole
from tracemask.store.row import Row

if TYPE_CHECKING:
    from rich.text import Text

Kind = Literal["ids", "author", "weight"]
BUDGET = 300_000  # steps of the search, under a second: rows further apart are shown as one change


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
    a, b = whole(a), whole(b)
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
        at, bt = head, head
        for x, y, size in [*_common(a[head:a_end].tolist(), b[head:b_end].tolist()), (a_end - head, b_end - head, 0)]:
            if (at, bt) != (head + x, head + y):
                yield "replace", at, head + x, bt, head + y
            if size:
                yield "equal", head + x, head + x + size, head + y, head + y + size
            at, bt = head + x + size, head + y + size
    if tail:
        yield "equal", a_end, len(a), b_end, len(b)


def _common(a: list[int], b: list[int]) -> list[tuple[int, int, int]]:
    """Equal stretches (start in a, start in b, size) along a shortest edit script, in order; [] past BUDGET steps.

    Myers 1986: furthest[k] is the largest x on diagonal x − y = k that d edits reach.
    """
    furthest, before, steps = {1: 0}, [], 0
    for d in range(len(a) + len(b) + 1):
        before.append(furthest.copy())
        for k in range(-d, d + 1, 2):
            x = first = furthest[k + 1] if _goes_down(furthest, k, d) else furthest[k - 1] + 1
            while x < len(a) and x - k < len(b) and a[x] == b[x - k]:
                x += 1
            furthest[k] = x
            if x >= len(a) and x - k >= len(b):
                return _walk_back(before, len(a), len(b))
            steps += 1 + x - first
        if steps > BUDGET:
            return []
    return []


def _goes_down(furthest: dict[int, int], k: int, d: int) -> bool:
    return k == -d or (k != d and furthest[k - 1] < furthest[k + 1])


def _walk_back(before: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int, int]]:
    found = []
    for d in range(len(before) - 1, -1, -1):
        k = x - y
        origin = k + 1 if _goes_down(before[d], k, d) else k - 1
        x0 = before[d][origin] if d else 0
        y0 = x0 - origin if d else 0
        size = min(x - x0, y - y0)
        if size > 0:
            found.append((x - size, y - size, size))
        x, y = x0, y0
    return found[::-1]


def _same_ids(a: Row, b: Row, a0: int, a1: int, b0: int) -> Iterator[Change]:
    size = a1 - a0
    if "author" in a.columns and "author" in b.columns:
        left, right = codes(a, "author")[a0:a1], codes(b, "author")[b0 : b0 + size]
        for start, end in _stretches(left, right):
            detail = f"{_author(left[start])} → {_author(right[start])}"
            yield Change("author", a0 + start, a0 + end, b0 + start, b0 + end, detail)
    weights_a, weights_b = _named_alike(stored_weights(a), stored_weights(b))
    for name in dict.fromkeys((*weights_a, *weights_b)):
        zero = np.zeros(size, np.float32)
        left = weights_a[name][a0:a1] if name in weights_a else zero
        right = weights_b[name][b0 : b0 + size] if name in weights_b else zero
        for start, end in _stretches(left, right):
            detail = f"{visible(name)} {float(left[start]):g} → {float(right[start]):g}"
            yield Change("weight", a0 + start, a0 + end, b0 + start, b0 + end, detail)


def _named_alike(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], ...]:
    """One stream on each side says what is trained, whatever its name: sampled, labels, a component."""
    if len(a) == len(b) == 1 and a.keys() != b.keys():
        name = "/".join((*a, *b))
        return {name: next(iter(a.values()))}, {name: next(iter(b.values()))}
    return a, b


def _author(code: int) -> str:
    return "unknown" if code < 0 else Author(code).label


def _stretches(left: np.ndarray, right: np.ndarray) -> Iterator[tuple[int, int]]:
    """Half-open ranges where both differ and neither changes its value."""
    differ = (left != right) & ~((left != left) & (right != right))  # NaN twice is no difference
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
