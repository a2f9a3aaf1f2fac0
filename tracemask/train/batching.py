"""From laid-out rows to the arrays that the loss reads: one entry per target, pointing at slots. Knows no model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tracemask.loss.batch import Batch
from tracemask.recipe.keys import name_of
from tracemask.recipe.step import LaidRow
from tracemask.store.row import Row
from tracemask.train.attention import plan_of
from tracemask.train.step import Work
from tracemask.train.tree import Layout, Sharing, lay_out

# Per-token columns that travel with a target, and the batch arrays they become.
CARRIED = {
    "old_logprob": "old_logprob",
    "logprob": "sampler_logprob",
    "ref_logprob": "ref_logprob",
    "temperature": "temperature",
}


def selected(row: LaidRow, length: int) -> np.ndarray:
    """Tokens among the first `length` that some component weighs."""
    chosen = np.zeros(length, bool)
    for weights in row.weights.values():
        chosen |= weights[:length] != 0
    return np.flatnonzero(chosen)


def batch_of(layout: Layout, rows: Sequence[LaidRow], *, dtype: torch.dtype = torch.float32) -> Batch:
    """The batch of one micro-batch. rows in layout order; a row cut by the plan gives only the tokens laid out."""
    picked = [selected(row, len(slots)) for row, slots in zip(rows, layout.slots, strict=True)]
    slot = _join([slots[at] for slots, at in zip(layout.slots, picked, strict=True)], np.int64)
    names = list(rows[0].weights) if rows else []

    def repeated(values: Sequence[int]) -> np.ndarray:
        return np.repeat(np.asarray(values, np.int64), [len(at) for at in picked])

    return Batch.from_numpy(
        dtype=dtype,
        input_ids=layout.ids,
        positions=layout.position,
        parent=layout.parent,
        exit=layout.exit,
        cu_seqlens=layout.roots,
        target_id=layout.ids[slot],
        parent_slot=layout.parent[slot],
        select=slot,
        row=repeated(range(len(rows))),
        rollout=repeated([row.rollout for row in rows]),
        group=repeated([row.group for row in rows]),
        index_in_row=_join(picked, np.int64),
        weights={name: _join([row.weights[name][at] for row, at in zip(rows, picked)]) for name in names},
        denominator={name: _join([row.denominator[name][at] for row, at in zip(rows, picked)]) for name in names},
        advantages=_join([row.advantage[at] for row, at in zip(rows, picked)]),
        names=tuple(name_of(row.row) for row in rows),
        tokens=layout.tokens,
        **_carried(rows, picked),
    )


def _carried(rows: Sequence[LaidRow], picked: Sequence[np.ndarray]) -> dict[str, Any]:
    """Optional arrays that at least one row has; NaN (temperature: 1) where a row lacks them."""
    out = {}
    for column, array in CARRIED.items():
        streams = [row.row.get(column) for row in rows]
        if any(stream is not None for stream in streams):
            parts = [
                np.full(len(at), np.nan) if stream is None else stream[at]
                for stream, at in zip(streams, picked, strict=True)
            ]
            values = _join(parts)
            if column == "temperature":
                values = np.where(np.isnan(values), 1.0, values)
                if (values == 1.0).all():
                    continue
            out[array] = values
    return out


def _join(parts: Sequence[np.ndarray], dtype: Any = np.float64) -> np.ndarray:
    return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype)


def work_of(
    layout: Layout, rows: Sequence[LaidRow], *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> Work:
    """The batch and its attention plan on `device`."""
    return Work(batch_of(layout, rows, dtype=dtype).to(device), plan_of(layout, device=device))


def dummy(components: Sequence[str], *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Work:
    """Two tokens and no target: what a rank runs while others still have micro-batches. Adds exactly zero."""
    empty = {name: np.zeros(2) for name in components}
    nothing = {column: np.zeros(2) for column in ("old_logprob", "logprob", "ref_logprob")}
    row = LaidRow(Row(-1, {"token_ids": np.zeros(2, np.int64), **nothing}), empty, empty, np.zeros(2), 0, 0)
    return work_of(lay_out([np.zeros(2, np.int64)], sharing=Sharing.ROWS), [row], device=device, dtype=dtype)
