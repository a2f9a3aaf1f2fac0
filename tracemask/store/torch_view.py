"""Rows and packs as torch tensors that share memory with the shard. Knows no order; torch is imported on first use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracemask.store.pack import Pack
from tracemask.store.reader import Dataset
from tracemask.store.row import Row

if TYPE_CHECKING:
    from torch import Tensor


def tensors(dataset: Dataset, i: int, columns: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Row `i` as tensors, without a copy where the shard is uncompressed and local (booleans are unpacked).

    Writing into one changes this process's view of the row, never the file. columns: default all of the row.
    """
    return of_row(dataset.row(i, writable=True), columns)


def of_row(row: Row, columns: Sequence[str] | None = None) -> dict[str, Tensor]:
    """A row's columns as tensors; read-only ones are copied, text is left out."""
    import torch

    from_numpy, out = torch.from_numpy, {}
    for name in row.columns if columns is None else columns:
        values = row.columns[name]
        if values.dtype.kind != "U":
            out[name] = from_numpy(values if values.flags.writeable else values.copy())
    return out


def of_pack(pack: Pack) -> dict[str, Tensor]:
    """A pack's columns, `cu_seqlens` and `positions` as tensors; text is left out."""
    import torch

    arrays = {**pack.columns, "cu_seqlens": pack.cu_seqlens, "positions": pack.positions}
    return {name: torch.from_numpy(values) for name, values in arrays.items() if values.dtype.kind != "U"}


class Rows:
    """A map-style torch dataset of rows, for `torch.utils.data.DataLoader`; a Stream is its sampler.

    Rows that reach another process are copies. `collate_fn` decides what a batch is: `pack.join`, or a list.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Row:
        return self.dataset.row(i)
