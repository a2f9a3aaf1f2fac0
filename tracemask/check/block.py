"""Rows laid end to end so that a rule is a few numpy passes over many rows. Knows no rule and no file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np

from tracemask.check.finding import Finding, Place, Severity
from tracemask.core.limits import IGNORED
from tracemask.store.row import Row
from tracemask.store.schema import DERIVED_PREFIXES, OPTIONAL_COLUMNS, TOKEN_COLUMNS

# Columns that speak of tokens one by one; other lists of a row may have any length.
PER_TOKEN = frozenset(
    (*TOKEN_COLUMNS, *OPTIONAL_COLUMNS, "labels", "mask", "attention_mask", "position_ids", "entropy")
)
PREFIXES = tuple(DERIVED_PREFIXES)


def per_token(name: str) -> bool:
    """Whether a column has one value per token."""
    return name in PER_TOKEN or name.startswith(PREFIXES)


class Block:
    """`rows` as flat arrays of length N = their tokens; row i of the block is [offsets[i], offsets[i + 1]).

    path: the dataset that findings name; default each row's shard. lines: of each row, where its shard is a log. A row
    whose columns differ in length has no tokens here and stands in `ragged`. Where only some rows have a column, the
    others hold its neutral value (NaN, 0, −1).
    """

    def __init__(
        self,
        rows: list[Row],
        *,
        shards: list[str] | None = None,
        path: str | None = None,
        lines: list[int | None] | None = None,
    ) -> None:
        self.rows = rows
        self.path = path
        self.shards = shards or [""] * len(rows)
        self.lines = lines or [None] * len(rows)
        self.ragged: dict[int, dict[str, int]] = {}
        kept: list[dict[str, np.ndarray]] = []
        for i, row in enumerate(rows):
            columns = {name: values for name, values in row.columns.items() if per_token(name)}
            lengths = {name: len(values) for name, values in columns.items()}
            whole = len(set(lengths.values())) <= 1
            if not whole:
                self.ragged[i] = lengths
            kept.append(columns if whole else {})
        sizes = [len(columns["token_ids"]) if columns else 0 for columns in kept]
        self.offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64)
        self._kept = kept
        self.names: tuple[str, ...] = tuple(dict.fromkeys(name for columns in kept for name in columns))
        self.facts: dict[str, Any] = {}  # analyses shared by rules, computed once a block

    def __len__(self) -> int:
        return int(self.offsets[-1])

    @cached_property
    def row_of(self) -> np.ndarray:
        """row_of[N] int32: the row (of this block) of every token."""
        return np.repeat(np.arange(len(self.rows), dtype=np.int32), np.diff(self.offsets))

    @cached_property
    def sizes(self) -> np.ndarray:
        """Tokens of every row."""
        return np.diff(self.offsets)

    @cached_property
    def ids(self) -> np.ndarray:
        """ids[N] int32 (int64 where an id does not fit)."""
        ids = self.column("token_ids")
        return np.zeros(0, dtype=np.int32) if ids is None else ids

    def column(self, name: str, *, neutral: float = 0) -> np.ndarray | None:
        """The column over all rows, `neutral` where a row lacks it; None where no row has it."""
        if name not in self.names:
            return None
        key = f"column:{name}"
        if key not in self.facts:
            parts, like = [], None
            for columns in self._kept:
                if name in columns:
                    like = columns[name].dtype
                    break
            for columns, size in zip(self._kept, self.sizes, strict=True):
                values = columns.get(name)
                parts.append(np.full(size, neutral, dtype=like) if values is None else values)
            self.facts[key] = np.concatenate(parts) if parts else np.zeros(0)
        return self.facts[key]

    @cached_property
    def labels(self) -> np.ndarray | None:
        """labels[N], IGNORED where nothing is trained, as stored."""
        return self.column("labels", neutral=IGNORED)

    @cached_property
    def logprob(self) -> np.ndarray | None:
        """logprob[N] float32, NaN where there is none; None where no token of the block has one."""
        values = self.column("logprob", neutral=np.nan)
        return None if values is None or np.isnan(values).all() else values

    @cached_property
    def weights(self) -> dict[str, np.ndarray]:
        """Weight streams by component."""
        found = {name.removeprefix("weight."): name for name in self.names if name.startswith("weight.")}
        return {key: self.column(name) for key, name in found.items()}  # type: ignore[misc]

    def scalar(self, name: str) -> list[Any]:
        """One scalar of every row; None where absent."""
        return [row.scalars.get(name) for row in self.rows]

    def spans(self, flags: np.ndarray, edges: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Starts and ends (flat, half-open) of the maximal runs of True inside rows, cut at `edges` too."""
        edge = np.empty(len(flags) + 1, dtype=bool)
        edge[0] = edge[-1] = True
        edge[1:-1] = flags[1:] != flags[:-1]
        edge[self.offsets if edges is None else edges] = True
        cuts = np.flatnonzero(edge)
        starts, ends = cuts[:-1], cuts[1:]
        on = flags[starts] if len(flags) else np.zeros(0, dtype=bool)
        return starts[on], ends[on]

    def first_per_row(self, positions: np.ndarray) -> Iterator[tuple[int, int, int]]:
        """(row of this block, its first position in the row, how many) for flat `positions` in ascending order."""
        rows = self.row_of[positions]
        unique, first, counts = np.unique(rows, return_index=True, return_counts=True)
        starts = self.offsets[unique]
        for row, at, start, count in zip(
            unique.tolist(), positions[first].tolist(), starts.tolist(), counts.tolist(), strict=True
        ):
            yield row, at - start, count

    def finding(
        self,
        code: str,
        row: int,
        message: str,
        *,
        token: int | None = None,
        end: int | None = None,
        severity: Severity | None = None,
        cause: str | None = None,
        **data: Any,
    ) -> Finding:
        """A finding in row `row` of this block; `token` and `end` count from the row's start."""
        source = self.rows[row]
        turn = None
        if token is not None and "message" in source.columns and 0 <= token < len(source.columns["message"]):
            turn = int(source.columns["message"][token])
            turn = None if turn < 0 else turn
        identity = source.scalars.get("id")
        place = Place(
            path=self.path or self.shards[row] or None,
            row=source.index,
            turn=turn,
            token=token,
            end=end,
            id=None if identity is None else str(identity),
            line=self.lines[row],
        )
        return Finding(code, message, place, severity, cause, dict(data))

    def each(
        self, code: str, positions: np.ndarray, message: str, *, cause: str | None = None, **data: Any
    ) -> Iterator[Finding]:
        """One finding per row that has flagged `positions` (flat, ascending), at its first; `{n}` is their number."""
        for row, token, count in self.first_per_row(positions):
            text = message.format(n=count, s="" if count == 1 else "s")
            yield self.finding(code, row, text, token=token, cause=cause, tokens=count, **data)


def common_prefix(left: Any, right: Any) -> int:
    """How many leading ids of two sequences agree."""
    n = min(len(left), len(right))
    differ = np.flatnonzero(np.asarray(left[:n]) != np.asarray(right[:n]))
    return int(differ[0]) if len(differ) else n


def named(row: int, line: int | None) -> str:
    """A row in words, as places count: by its log's line where it was rendered from one."""
    return f"row {row}" if line is None else f"line {line}"


def no_line(row: Row) -> None:
    """Rows of a dataset are known by their number."""


def blocks(
    rows: Iterable[tuple[Row, str]],
    *,
    tokens: int,
    path: str | None = None,
    line_of: Callable[[Row], int | None] = no_line,
) -> Iterator[Block]:
    """Rows (with the shard each lies in) in blocks of about `tokens` tokens; a longer row is a block of its own.

    path: what findings name as their file; default the shard of each row. Row numbers are the dataset's. line_of: the
    line of its log that a row was rendered from.
    """
    held: list[Row] = []
    shards: list[str] = []
    size = 0
    for row, shard in rows:
        if held and size + len(row) > tokens:
            yield Block(held, shards=shards, path=path, lines=[line_of(each) for each in held])
            held, shards, size = [], [], 0
        held.append(row)
        shards.append(shard)
        size += len(row)
    if held:
        yield Block(held, shards=shards, path=path, lines=[line_of(each) for each in held])
