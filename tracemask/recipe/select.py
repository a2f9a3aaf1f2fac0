"""Which tokens a component weighs: rules over author, role and part, ownership, and lines left out. Knows one row."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import numpy as np

from tracemask.core.errors import RecipeError
from tracemask.core.limits import IGNORED
from tracemask.core.vocab import Author, Code, Part, Role
from tracemask.recipe.component import BODY, OTHERS, Component, Rule
from tracemask.store.row import Row

TokenBytes = Callable[[int], bytes]
CODES = ("author", "role", "part")
SELECTED_BY = (*CODES, "message", "sampled", "mask", "labels")  # every recipe may read these


@lru_cache(maxsize=256)
def _codes(kind: type[Code], labels: tuple[str, ...]) -> np.ndarray:
    """bool[256]: the codes spelled in `labels`."""
    table = np.zeros(256, dtype=bool)
    table[[int(kind.of(label)) for label in labels]] = True
    table.setflags(write=False)
    return table


def must_fit(row: Row, names: Iterable[str]) -> None:
    """Raises RecipeError TM101 where one of the columns that are read is not as long as the ids (numpy would stretch a
    single value), TM603 where author, role or part are no codes."""
    for name in names:
        column = row.get(name)
        if column is None:
            continue
        if len(column) != len(row):
            what = f"{len(column)} values of {name} for {len(row)} token ids"
            raise RecipeError("TM101", where=f"row {row.index}", what=what, fix="write one value a token")
        if name in CODES and column.dtype != np.uint8 and len(column):
            if column.dtype.kind not in "iu" or column.min() < 0 or column.max() > 255:
                what = f"{name} holds what is no code"
                raise RecipeError("TM603", where=f"row {row.index}", what=what, fix="name another column (--columns)")


def sampled_tokens(row: Row) -> np.ndarray:
    """bool[T]: what the policy sampled and this row owns; a foreign row's mask or labels (≠ −100) stand for it."""
    for name in ("sampled", "mask"):
        column = row.get(name)
        if column is not None:
            return column != 0
    labels = row.get("labels")
    if labels is None:
        raise _lacks(row, "sampled", "nor a mask or labels")
    return labels != IGNORED


def owned_tokens(row: Row) -> np.ndarray:
    """bool[T]: tokens this row trains. Policy tokens: `sampled`; others: those after the fork point, if any."""
    owned = np.ones(len(row), dtype=bool)
    fork = row.scalars.get("fork_position")
    if fork is not None and fork > 0:
        owned[: int(fork)] = False
    author = row.get("author")
    policy = sampled_tokens(row) if author is None else author == Author.POLICY
    return np.where(policy, sampled_tokens(row), owned)


def after_reply(row: Row) -> np.ndarray:
    """bool[T]: the token stands after the policy's first token of the row."""
    author = row.get("author")
    policy = sampled_tokens(row) if author is None else author == Author.POLICY
    return np.cumsum(policy) > policy


def observation_tokens(row: Row) -> np.ndarray:
    """bool[T]: owned body tokens that neither the policy nor the template wrote, after the policy's first token."""
    rule = Rule(sampled=False, authors=list(OTHERS), parts=list(BODY), after_reply=True)
    return matched(rule, row, owned_tokens(row))


def matched(rule: Rule, row: Row, owned: np.ndarray) -> np.ndarray:
    """bool[T]: owned tokens that a rule matches. Raises RecipeError TM603 for a column that the dataset lacks."""
    out = owned.copy()
    if rule.sampled is not None:
        out &= sampled_tokens(row) == rule.sampled
    for name, kind, labels in (
        ("author", Author, rule.authors),
        ("role", Role, rule.roles),
        ("part", Part, rule.parts),
    ):
        if labels is not None:
            column = row.get(name)
            if column is None:
                raise _lacks(row, name)
            out &= _codes(kind, tuple(labels))[column]
    if rule.after_reply:
        out &= after_reply(row)
    return out


def rule_weights(component: Component, row: Row) -> np.ndarray:
    """float32[T]: the weight of the first rule that matches each owned token, 0 where none does."""
    owned = owned_tokens(row)
    weights = np.zeros(len(row), dtype=np.float32)
    free = np.ones(len(row), dtype=bool)
    for rule in component.rules:
        hit = matched(rule, row, owned) & free
        weights[hit] = rule.weight
        free &= ~hit
    return weights


def admits(component: Component, row: Row) -> bool:
    """The component's `rows` filter accepts this row's scalars; "a.b" reads field b of the struct a, true and false are
    spelled as in TOML. Raises RecipeError TM603 for a scalar that the dataset lacks: a typo would train nothing."""
    for name, allowed in component.rows.items():
        first, *rest = name.split(".")
        if first not in row.scalars:
            what = f"rows names the scalar {first!r}, which the dataset lacks"
            fix = f"it has {', '.join(map(str, row.scalars)) or 'none'}"
            raise RecipeError("TM603", where=f"row {row.index}", what=what, fix=fix)
        value = row.scalars[first]
        for part in rest:
            value = value.get(part) if isinstance(value, Mapping) else None
        if (str(value).lower() if isinstance(value, bool | np.bool_) else str(value)) not in allowed:
            return False
    return True


def dropped_lines(component: Component, row: Row, weights: np.ndarray, token_bytes: TokenBytes | None) -> np.ndarray:
    """bool[T]: weighed tokens that overlap a match of one of the component's `drop` patterns.

    Patterns see the text of one message's weighed tokens at a time, with ^ and $ at line edges; bytes that are no UTF-8
    match nothing. Raises RecipeError TM603 without the tokenizer's `token_bytes`.
    """
    out = np.zeros(len(row), dtype=bool)
    if not component.drop or not weights.any():
        return out
    if token_bytes is None:
        what = "[drop] patterns read text, and no tokenizer was given"
        raise RecipeError("TM603", where="drop", what=what, fix="--tokenizer; in Python token_bytes")
    patterns = [re.compile(pattern, re.MULTILINE) for pattern in component.drop]
    for start, end in _runs(weights != 0, row.get("message")):
        edges, text_at, text = _decoded([token_bytes(int(token)) for token in row["token_ids"][start:end]])
        for pattern in patterns:
            for match in pattern.finditer(text):
                first, last = text_at[match.start()], text_at[match.end()]
                if last > first:
                    out[start:end] |= (edges[1:] > first) & (edges[:-1] < last)
    return out


def _decoded(pieces: list[bytes]) -> tuple[np.ndarray, list[int], str]:
    """Byte edges of tokens [n + 1], byte offset of each character [len(text) + 1], and the text."""
    edges = np.concatenate(([0], np.cumsum([len(piece) for piece in pieces])))
    text = b"".join(pieces).decode("utf-8", errors="surrogateescape")
    at = [0]
    for character in text:
        at.append(at[-1] + len(character.encode("utf-8", errors="surrogateescape")))
    return edges, at, text


def _runs(chosen: np.ndarray, message: np.ndarray | None) -> list[tuple[int, int]]:
    """Half-open runs of chosen tokens that lie in one message."""
    key = np.zeros(len(chosen), dtype=np.int64) if message is None else message.astype(np.int64)
    at = np.flatnonzero(chosen)
    if not len(at):
        return []
    breaks = np.flatnonzero((np.diff(at) > 1) | (np.diff(key[at]) != 0)) + 1
    return [(int(part[0]), int(part[-1]) + 1) for part in np.split(at, breaks)]


def _lacks(row: Row, column: str, more: str = "") -> RecipeError:
    what = f"the dataset has no column {column!r}{' ' + more if more else ''}"
    fix = "convert the traces, or name the column (--columns)"
    if column in CODES and any(name in row.columns for name in ("sampled", "mask", "labels")):
        fix += "; select = [{ sampled = true }] takes the tokens of the mask or labels"
    return RecipeError("TM603", where=f"row {row.index}", what=what, fix=fix)
