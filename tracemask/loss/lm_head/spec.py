"""How logits are made of hidden states, and how the fused head goes about it. Knows no term."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

CPU_BUFFER = 48 << 20  # bytes of logits at a time: large enough for the matrix products, small enough to stay cheap
GPU_BUFFER = 2 << 30  # at most a 32nd of the device's memory


class RowKernels(NamedTuple):
    """The two operations on a buffer of logits that a device has its own code for; contracts in torch_rows.py."""

    log_probs: Callable[..., Any]
    gradient_: Callable[..., None]


@dataclass(frozen=True)
class Logits:
    """z = softcap·tanh((h·Wᵀ + b)·scale / softcap) / temperature over the first `vocab` rows of W."""

    scale: float = 1.0
    softcap: float | None = None
    vocab: int | None = None

    @property
    def plain(self) -> bool:
        """Whether the matrix product is the logit, up to temperature."""
        return self.scale == 1.0 and self.softcap is None

    def transform(self, raw: Tensor) -> Tensor:
        """Raw products [..] → logits before temperature, in raw's dtype."""
        scaled = raw if self.scale == 1.0 else raw * self.scale
        return scaled if self.softcap is None else self.softcap * torch.tanh(scaled / self.softcap)

    def transform_(self, raw: Tensor) -> Tensor:
        """`transform` in place."""
        if self.scale != 1.0:
            raw.mul_(self.scale)
        return raw if self.softcap is None else raw.div_(self.softcap).tanh_().mul_(self.softcap)

    def slope_(self, logits: Tensor) -> Tensor:
        """d logit / d raw from the logits before temperature, in place."""
        if self.softcap is None:
            return logits.fill_(self.scale)
        return logits.div_(self.softcap).square_().neg_().add_(1).mul_(self.scale)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def chunk_rows(chunk: int | str, rows: int, vocab: int, like: Tensor) -> int:
    """Logit rows at a time: `chunk`, or as many as the device's buffer holds, in equal shares."""
    if chunk != "auto":
        return max(1, min(int(chunk), rows))
    budget = CPU_BUFFER
    if like.is_cuda:
        budget = min(GPU_BUFFER, torch.cuda.get_device_properties(like.device).total_memory // 32)
    most = max(16, budget // (vocab * like.element_size()))
    parts = max(1, -(-rows // most))
    return max(1, -(-rows // parts))
