"""The loss engine inside a plain transformers Trainer: the trainer computes log-probs, `loss.from_logprobs` the loss.

python examples/transformers_trainer.py [SHARDS] [MODEL]    (default: the bundled rollouts and their tiny model)

One batch is one step: whole groups, so that advantages and denominators are the step's. Keep
gradient_accumulation_steps at 1, or count the step first (`loss.step_counts`, docs/howto/loss.md).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

from tracemask import loss, open_dataset
from tracemask.store.stream import group_rows

ROOT = Path(__file__).resolve().parents[1]


class Groups(Dataset[list[Any]]):
    """One item is one group: all rows of its rollouts."""

    def __init__(self, shards: str) -> None:
        self.rows = open_dataset(shards)
        self.groups = list(group_rows(self.rows)[0].values())

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, index: int) -> list[Any]:
        return [self.rows.row(row) for row in self.groups[index]]


def collate(groups: list[list[Any]]) -> dict[str, Tensor]:
    """Right-padded ids, attention and loss masks, sampler log-probs [B, T]; reward and group [B]."""
    rows = [row for group in groups for row in group]
    longest = max(len(row) for row in rows)

    def pad(column: str, kind: torch.dtype) -> Tensor:
        out = torch.zeros(len(rows), longest, dtype=kind)
        for at, row in enumerate(rows):
            out[at, : len(row)] = torch.from_numpy(row[column].copy()).to(kind)
        return out

    lengths = torch.tensor([len(row) for row in rows])
    mask = pad("sampled", torch.float32)
    mask[:, 0] = 0  # nothing predicts a row's first token
    return {
        "input_ids": pad("token_ids", torch.int64),
        "attention_mask": (torch.arange(longest)[None] < lengths[:, None]).long(),
        "mask": mask,
        "sampler": pad("logprob", torch.float32).nan_to_num(),
        "rewards": torch.tensor([float(row.scalars["reward"] or 0.0) for row in rows]),
        "groups": torch.tensor([at for at, group in enumerate(groups) for _ in group]),
    }


class RlTrainer(Trainer):
    """A Trainer whose loss is a recipe. Metrics of the last step are in `last`."""

    recipe = "dapo"
    last: dict[str, Any] = {}

    def compute_loss(self, model: Any, inputs: dict[str, Tensor], *_: Any, **__: Any) -> Tensor:
        """The recipe's loss of the batch; index t speaks of token t, so the shift happens here, once."""
        logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], use_cache=False).logits
        lp = logits[:, :-1].float().log_softmax(-1).gather(2, inputs["input_ids"][:, 1:, None])[..., 0]
        lp = torch.nn.functional.pad(lp, (1, 0))
        out = loss.from_logprobs(
            self.recipe,
            lp,
            mask=inputs["mask"],
            sampler=inputs["sampler"],
            rewards=inputs["rewards"],
            group=inputs["groups"],
        )
        self.last = {name: value.value for name, value in out.components.items()}
        return out.total


def shards_of_the_bundled_rollouts(out: str) -> str:
    """Convert fixtures/rollouts/harbour.jsonl."""
    command = [sys.executable, "-m", "tracemask_cli.main", "convert", str(ROOT / "fixtures/rollouts/harbour.jsonl")]
    command += ["--tokenizer", str(ROOT / "fixtures/tokenizers/small"), "-o", out, "--max-skipped", "1"]
    subprocess.run(command, check=True, capture_output=True)
    return out


def main(shards: str | None = None, model: str = str(ROOT / "fixtures/models/tiny"), steps: int = 3) -> dict[str, Any]:
    """Train a few steps; returns the last step's components."""
    with tempfile.TemporaryDirectory() as folder:
        data = Groups(shards or shards_of_the_bundled_rollouts(f"{folder}/shards"))
        arguments = TrainingArguments(
            output_dir=f"{folder}/run",
            per_device_train_batch_size=2,  # groups
            max_steps=steps,
            learning_rate=1e-4,
            remove_unused_columns=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
        )
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        trainer = RlTrainer(model=policy, args=arguments, train_dataset=data, data_collator=collate)
        trainer.train()
    return trainer.last


if __name__ == "__main__":
    print(main(*sys.argv[1:3]))
