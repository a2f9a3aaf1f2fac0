"""What the loader reads from: a dataset, its path, rows in memory, or traces with a renderer. Knows no order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from tracemask.core.errors import TrainError
from tracemask.core.fingerprint import fingerprint
from tracemask.store.row import Row


class Rows(Protocol):
    """What the loader needs of a dataset."""

    metadata: dict[str, Any]
    fingerprint: str

    def __len__(self) -> int: ...
    def row(self, i: int) -> Row: ...
    def scalars(self, names: Sequence[str] | None = None) -> dict[str, list[Any]]: ...


class MemoryRows:
    """Rows that lie in no file, as a dataset."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = [replace(row, index=at) for at, row in enumerate(rows)]
        self.metadata: dict[str, Any] = {}
        self.fingerprint = fingerprint([[int(i) for i in row["token_ids"]] for row in self._rows])

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, i: int) -> Row:
        """Row `i`."""
        return self._rows[i]

    def scalars(self, names: Sequence[str] | None = None) -> dict[str, list[Any]]:
        """Whole scalar columns; None where a row lacks one."""
        known = dict.fromkeys(name for row in self._rows for name in row.scalars)
        return {name: [row.scalars.get(name) for row in self._rows] for name in known if not names or name in names}


def rows_of(source: Any, *, renderer: Any = None, columns: Mapping[str, str] | None = None) -> Rows:
    """`source` as rows: a dataset, its path, a sequence of Row, or traces with the `renderer` that makes samples."""
    if hasattr(source, "row") and hasattr(source, "scalars"):
        return source
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        from tracemask.store.opening import open_named

        return open_named(source, columns=columns)
    items = list(source)
    if items and not isinstance(items[0], Row):
        if renderer is None:
            raise TrainError(
                "TM900", where="prepare", what="traces need a renderer", fix="renderer=Renderer(tokenizer)"
            )
        from tracemask.store.rows import of_sample

        samples = renderer.render_many(items)
        items = [of_sample(one, trace) for trace, found in zip(items, samples, strict=True) for one in found]
    if not items:
        raise TrainError("TM904", where="prepare", what="nothing to prepare", fix="give traces, rows or a dataset")
    return MemoryRows(items)
