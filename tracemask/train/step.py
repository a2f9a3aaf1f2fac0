"""The whole step, backbone and head, inside one module's forward: what DDP and FSDP2 wrap. Knows no data.

Inside the root's forward FSDP2 has gathered the head, so its weight is a plain tensor and tied embeddings are exact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tracemask.loss.batch import Batch
from tracemask.loss.engine import counts_after_rejection, from_hidden
from tracemask.train.attention import Plan
from tracemask.train.model import head_facts, hidden_states

# A component that weighs every target alike: how log-probs are read without a loss of the recipe's.
_READ = SimpleNamespace(components={"read": SimpleNamespace(term="ce", coef=1.0, options=None, mismatch=None)})


class Mode(Enum):
    """What one pass over a micro-batch is for."""

    LOSS = "loss"  # the recipe's loss, with gradient
    READ = "read"  # log-probs of the targets, weights ignored
    COUNT = "count"  # targets that no clip or importance mask rejects, per component


@dataclass(frozen=True, slots=True)
class Work:
    """One micro-batch ready for the model: its loss arrays and its attention plan, on the model's device."""

    batch: Batch
    plan: Plan


class PolicyStep(nn.Module):
    """A language model and a recipe; forward is the loss, or the log-probs, of one micro-batch."""

    def __init__(
        self, model: nn.Module, recipe: Any, *, valid_vocab: int | None = None, autocast: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.recipe = recipe
        self.valid_vocab = valid_vocab
        self.autocast = autocast
        self.logits = head_facts(model)

    def forward(
        self, work: Work, *, mode: Mode = Mode.LOSS, entropy: bool = False, counts: Mapping[str, float] | None = None
    ) -> tuple[Tensor, Any]:
        """(loss, 0-d, with gradient; LossOutput), or for COUNT (0; counts). entropy: report it. counts: from_hidden's.

        A tuple, because FSDP2 and DDP look for tensors in tuples to hook their backward on.
        """
        batch = work.batch
        device = batch.input_ids.device.type
        with torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None):
            assert batch.positions is not None
            hidden = hidden_states(self.model, batch.input_ids, batch.positions, work.plan)
        head: Any = self.model.get_output_embeddings()  # type: ignore[operator]
        compute = self.autocast or head.weight.dtype
        hidden, weight = hidden.to(compute), head.weight.to(compute)
        facts: dict[str, Any] = {
            "bias": None if head.bias is None else head.bias.to(compute),
            "softcap": self.logits.softcap,
            "logit_scale": self.logits.scale,
            "valid_vocab": self.valid_vocab,
        }
        if mode is Mode.COUNT:
            return hidden.new_zeros(()), counts_after_rejection(self.recipe, hidden, weight, batch, **facts)
        if mode is Mode.READ:
            output = from_hidden(_READ, hidden, weight, _evenly(batch), **facts)
        else:
            output = from_hidden(self.recipe, hidden, weight, batch, entropy=entropy, counts=counts, **facts)
        return output.total, output


def _evenly(batch: Batch) -> Batch:
    """The batch with weight 1 on every target."""
    ones = torch.ones(len(batch), dtype=torch.float32, device=batch.input_ids.device)
    return replace(batch, weights={"read": ones}, denominator={"read": ones})


@torch.no_grad()
def read_logprobs(step: nn.Module, work: Work) -> Tensor:
    """log p of each target [N] under the model as it is now, without a gradient. step: PolicyStep, wrapped or not."""
    was_training = step.training
    step.eval()
    _, output = step(work, mode=Mode.READ)
    step.train(was_training)
    return output.logprobs


@torch.no_grad()
def count_kept(step: nn.Module, work: Work) -> dict[str, int]:
    """component → targets of this micro-batch that the current policy's masks keep."""
    _, counts = step(work, mode=Mode.COUNT)
    return counts
