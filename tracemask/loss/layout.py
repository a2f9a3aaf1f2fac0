"""Which rollout each position of someone else's arrays belongs to: packed [T] or padded [B, T]. Knows no loss."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from tracemask.core.errors import LossError


def misfit(what: str, fix: str) -> NoReturn:
    """Raise LossError TM950."""
    raise LossError("TM950", what=what, fix=fix)


class Layout:
    """Which rollout each flat position belongs to. Positions of a padded batch keep their place; the mask decides."""

    def __init__(self, logprobs: Tensor, mask: Tensor | None, cu_seqlens: Tensor | None, *, needed: bool) -> None:
        self.shape, self.device, count = logprobs.shape, logprobs.device, logprobs.numel()
        if logprobs.dim() == 2:
            if cu_seqlens is not None:
                raise LossError(
                    "TM950", what="cu_seqlens with [B, T] log-probs", fix="give packed [T] log-probs, or no cu_seqlens"
                )
            if mask is None and needed:
                raise LossError(
                    "TM950", what="[B, T] log-probs without a mask: padding would be trained", fix="pass mask [B, T]"
                )
            self.rollouts = logprobs.shape[0]
            bounds = torch.arange(self.rollouts + 1, device=self.device) * logprobs.shape[1]
        elif logprobs.dim() == 1:
            bounds = torch.tensor([0, count]) if cu_seqlens is None else torch.as_tensor(cu_seqlens)
            bounds = bounds.to(self.device, torch.int64)
            self.rollouts = len(bounds) - 1
            if bounds.numel() < 1 or int(bounds[0]) != 0 or int(bounds[-1]) != count or bool((bounds.diff() < 0).any()):
                misfit(f"cu_seqlens does not cut {count} tokens", "start at 0, end at T, ascend")
        else:
            misfit(f"log-probs of shape {tuple(self.shape)}", "give [T] or [B, T]")
        places = torch.arange(count, device=self.device)
        self.rollout = torch.searchsorted(bounds, places, right=True) - 1
        self.index = places - bounds[self.rollout] if count else places
        self.mask = self.flat(mask, "mask")

    def flat(self, values: Tensor | None, name: str) -> Tensor | None:
        """values [T] or [B, T] → [T]."""
        if values is None:
            return None
        values = torch.as_tensor(values, device=self.device)
        if values.shape != self.shape:
            what = f"{name} has shape {tuple(values.shape)}, the log-probs {tuple(self.shape)}"
            misfit(what, "align it: entry t speaks of token t")
        return values.reshape(-1)

    def per_token(self, values: Tensor, name: str) -> Tensor:
        """Values per token, or [rollouts] given to each of its tokens: [T]."""
        values = torch.as_tensor(values, device=self.device)
        if values.shape != self.shape and tuple(values.shape) in ((self.rollouts,), (self.rollouts, 1)):
            return values.reshape(-1)[self.rollout]
        flat = self.flat(values, name)
        assert flat is not None
        return flat

    def lengths(self, *, masked: bool) -> Tensor | None:
        """Tokens in the mask of each rollout [rollouts]; without a mask all are, if `masked`, else nobody knows."""
        if self.mask is None and not masked:
            return None
        counted = torch.ones_like(self.rollout) if self.mask is None else (self.mask > 0).to(self.rollout)
        return torch.zeros(self.rollouts, dtype=torch.int64, device=self.device).index_add_(0, self.rollout, counted)
