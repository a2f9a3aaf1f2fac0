"""The whole step, backbone and head, inside one module's forward: what DDP and FSDP2 wrap. Knows no data.

Inside the root's forward FSDP2 has gathered the head, so its weight is a plain tensor and tied embeddings are exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from tracemask.loss.batch import Batch
from tracemask.loss.engine import from_hidden
from tracemask.loss.output import LossOutput
from tracemask.train.attention import Plan
from tracemask.train.model import HeadFacts, head_facts, hidden_states

# A component that weighs every target alike: how log-probs are read without a loss of the recipe's.
_READ = SimpleNamespace(components={"read": SimpleNamespace(term="ce", coef=1.0, options=None, mismatch=None)})


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
        self.facts: HeadFacts = head_facts(model)

    def forward(self, work: Work, *, entropy: bool = False, read: bool = False) -> tuple[Tensor, LossOutput]:
        """(loss of the micro-batch, 0-d, with gradient; everything else). read: log-probs only, weights ignored."""
        batch, recipe = work.batch, self.recipe
        if read:
            ones = torch.ones(len(batch), dtype=torch.float32, device=batch.input_ids.device)
            batch = replace(batch, weights={"read": ones}, denominator={"read": ones})
            recipe = _READ
        device = batch.input_ids.device.type
        with torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None):
            assert batch.positions is not None
            hidden = hidden_states(self.model, batch.input_ids, batch.positions, work.plan)
        head: Any = self.model.get_output_embeddings()  # type: ignore[operator]
        compute = self.autocast or head.weight.dtype
        output = from_hidden(
            recipe,
            hidden.to(compute),
            head.weight.to(compute),
            batch,
            bias=None if head.bias is None else head.bias.to(compute),
            softcap=self.facts.softcap,
            logit_scale=self.facts.scale,
            valid_vocab=self.valid_vocab,
            entropy=entropy,
        )
        return output.total, output


@torch.no_grad()
def read_logprobs(step: nn.Module, work: Work) -> Tensor:
    """log p of each target [N] under the model as it is now, without a gradient. step: PolicyStep, wrapped or not."""
    was_training = step.training
    step.eval()
    _, output = step(work, read=True)
    step.train(was_training)
    return output.logprobs
