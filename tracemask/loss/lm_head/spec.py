"""How logits are made of hidden states, what fits together, and how the fused head goes about it. Knows no term."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tracemask.loss.layout import misfit

CPU_BUFFER = 48 << 20  # bytes of logits at a time: large enough for the matrix products, small enough to stay cheap
GPU_BUFFER = 2 << 30  # at most a 32nd of the device's memory


class RowKernels(NamedTuple):
    """The two operations on a buffer of logits that a device has its own code for; contracts in torch_rows.py."""

    log_probs: Callable[..., Any]
    gradient_: Callable[..., None]


@dataclass(frozen=True)
class Logits:
    """z = softcap·tanh((h·Wᵀ + b)·scale / softcap) / temperature over the first `vocab` rows of W (None: all).

    Raises LossError TM950 for a soft-cap that is not above 0.
    """

    scale: float = 1.0
    softcap: float | None = None
    vocab: int | None = None

    def __post_init__(self) -> None:
        if self.softcap is not None and not self.softcap > 0:
            misfit(f"softcap {self.softcap:g}", "above 0, or None for a head without one")

    def width(self, weight: Tensor) -> int:
        """How many rows of the head weight [V, H] are the vocabulary. Raises LossError TM950 for 0 or more than V."""
        vocab = weight.shape[0] if self.vocab is None else self.vocab
        if not 0 < vocab <= weight.shape[0]:
            misfit(f"valid_vocab {vocab} for a head of {weight.shape[0]} rows", "1 to the head's rows")
        return vocab

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


def aligned(hidden: Tensor, weight: Tensor, slots: int) -> tuple[Tensor, Tensor]:
    """hidden [S, H] or [1, S, H] and the head's weight [V, H] as [S, H] and a plain [V, H], S = slots.

    Raises LossError TM950 where shapes or dtypes do not fit.
    """
    hidden = hidden[0] if hidden.dim() == 3 and hidden.shape[0] == 1 else hidden
    weight = _whole(weight)
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        misfit(f"hidden {tuple(hidden.shape)} and head {tuple(weight.shape)} do not fit", "give [S, H] and [V, H]")
    if hidden.shape[0] != slots:
        misfit(f"{hidden.shape[0]} hidden states for {slots} slots", "one per slot")
    if hidden.dtype != weight.dtype:
        misfit(f"hidden is {hidden.dtype}, the head {weight.dtype}", "cast one, e.g. weight.to(hidden.dtype)")
    return hidden, weight


def _whole(weight: Tensor) -> Tensor:
    """A DTensor's full weight, whose gradient goes back as the sum over ranks; a plain tensor as it is."""
    if type(weight) is Tensor or not hasattr(weight, "full_tensor"):
        return weight
    from torch.distributed.tensor import DTensor, Partial

    assert isinstance(weight, DTensor)
    return weight.full_tensor(grad_placements=[Partial()] * weight.device_mesh.ndim)


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
