"""The loss engine inside TRL's GRPOTrainer: TRL samples and scores, a recipe makes the loss. Needs trl >= 1.0.

python examples/trl_trainer.py [MODEL] [RECIPE]     (default: the bundled tiny model, gspo)

TRL's own loss is replaced in one method, so every recipe with its own denominators works there: dapo, gspo, cispo,
dppo, sapo, … Keep gradient_accumulation_steps at 1: one batch is one step, and its denominators are counted in it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from tracemask import loss

ROOT = Path(__file__).resolve().parents[1]


class RecipeTrainer(GRPOTrainer):
    """GRPOTrainer with a recipe's loss. Components of the last step are in `last`."""

    recipe = "gspo"
    last: dict[str, float] = {}

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        lp, _, _ = self._get_per_token_logps_and_entropies(model, ids, seen, mask.shape[1])
        old = inputs.get("old_per_token_logps")
        out = loss.from_logprobs(
            self.recipe,
            lp,
            mask=mask.float(),
            old=lp.detach() if old is None else old,
            sampler=inputs.get("sampling_per_token_logps"),
            ref=inputs.get("ref_per_token_logps"),
            advantages=inputs["advantages"],
        )
        self.last = {name: value.value for name, value in out.components.items()}
        return out.total


def short_answers(completions: list[Any], **_: Any) -> list[float]:
    """A reward that needs no judge: fewer characters are better."""
    return [-float(len(text if isinstance(text, str) else text[0]["content"])) / 100 for text in completions]


def main(model: str = str(ROOT / "fixtures/models/tiny"), recipe: str = "gspo", steps: int = 2) -> dict[str, float]:
    """Train a few steps; returns the last step's components."""
    small = ROOT / "fixtures/tokenizers/small/tokenizer.json"
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(small), eos_token="<|im_end|>", pad_token="<|endoftext|>")
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        trainer = RecipeTrainer(
            model=policy,
            processing_class=tokenizer,
            reward_funcs=short_answers,
            train_dataset=Dataset.from_dict({"prompt": ["When does the boat from pier 4 leave?"] * 8}),
            args=GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                max_steps=steps,
                per_device_train_batch_size=8,
                num_generations=4,
                max_completion_length=12,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
            ),
        )
        trainer.recipe = recipe
        trainer.train()
    return trainer.last


if __name__ == "__main__":
    print(main(*sys.argv[1:3]))
