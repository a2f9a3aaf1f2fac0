"""A dataset's rows laid one at a time: advantages per token, then weights. Knows no count, no step and no file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tracemask.recipe.advantage import Advantages
from tracemask.recipe.keys import RowKey, dataset_key, stream, streams
from tracemask.recipe.model import Recipe
from tracemask.recipe.select import TokenBytes
from tracemask.recipe.weights import Laid, lay_row
from tracemask.store.row import Row

if TYPE_CHECKING:
    from tracemask.store.reader import Dataset


class Laying:
    """What a recipe does to each row of a dataset whose advantages are known; the same for every view of it."""

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        advantages: Advantages,
        *,
        policy_version: int | None = None,
        token_bytes: TokenBytes | None = None,
    ) -> None:
        self.recipe, self.dataset, self.advantages = recipe, dataset, advantages
        self.policy_version, self.token_bytes = policy_version, token_bytes
        self._rows_of = self._rows_of_traces()
        self._held: tuple[Any, dict[int, np.ndarray]] = (None, {})  # streams of the trace seen last

    def key(self, row: Row) -> RowKey:
        """The row's rollout, group and scalar advantage."""
        return dataset_key(row, self.advantages)

    def values(self, row: Row) -> np.ndarray:
        """float64[T]: the row's advantage of each token; NaN: none."""
        trace = row.scalars.get("trace_id")
        together = self._rows_of.get(trace, ())
        if len(together) < 2:
            return stream(self.recipe, row, self.key(row))
        if self._held[0] != trace:
            rows = [self.dataset.row(index) for index in together]
            found = streams(self.recipe, rows, [self.key(each) for each in rows])
            self._held = trace, dict(zip(together, found, strict=True))
        return self._held[1][row.index]

    def laid(self, row: Row, values: np.ndarray | None = None) -> Laid:
        """Weights of every component, and what left them. values: `self.values(row)`, if known already."""
        return lay_row(
            self.recipe,
            row,
            self.values(row) if values is None else values,
            policy_version=self.policy_version,
            token_bytes=self.token_bytes,
            reason=self.key(row).reason,
        )

    def _rows_of_traces(self) -> dict[Any, list[int]]:
        """Rows that must be seen together: those of a trace, where shared tokens take the mean over branches."""
        if self.recipe.advantage.shared != "mean_of_branches":
            return {}
        out: dict[Any, list[int]] = {}
        for index, trace in enumerate(self.dataset.scalars(["trace_id"]).get("trace_id", [])):
            if trace is not None:
                out.setdefault(trace, []).append(index)
        return out
