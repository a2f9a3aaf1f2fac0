"""The external sampler: SmolLM2 answers, a rule rewards, a JSONL log is written. Knows no trainer, only files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

QUESTION = "Name one color. Answer in one short sentence."
COLOURS = ["red", "blue", "green", "yellow", "black", "white", "purple", "orange", "pink", "brown", "gray", "grey"]
SHORT = 10  # tokens, stop included


def reward(text: str, tokens: int) -> float:
    """1 for an answer of at most SHORT tokens that names a colour."""
    return float(tokens <= SHORT and any(colour in text.lower() for colour in COLOURS))


class Sampler:
    """One policy in memory; `load` takes newer weights from the trainer's export."""

    def __init__(self, model: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.model: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        self.stop = self.tokenizer.convert_tokens_to_ids("<|im_end|>")
        self.messages = [{"role": "user", "content": QUESTION}]
        self.prompt = self.tokenizer.apply_chat_template(self.messages, add_generation_prompt=True, return_dict=False)

    def load(self, exported: Path, *, step: int, timeout: float = 300.0) -> None:
        """Wait until the trainer has exported the weights after `step`, and take them."""
        from safetensors.torch import load_file

        deadline = time.monotonic() + timeout
        while not (exported / "step.json").is_file() or _step(exported) < step:
            if time.monotonic() > deadline:
                raise TimeoutError(f"no weights of step {step} in {exported}")
            time.sleep(0.05)
        self.model.load_state_dict(load_file(exported / "model.safetensors"), strict=False)  # the tied head is absent

    @torch.no_grad()
    def rollouts(self, count: int, *, tokens: int, group: str) -> list[dict[str, Any]]:
        """`count` sampled answers with ids and log-probs, at temperature 1 from the whole distribution.

        top_k = 0 and top_p = 1: generate would cut to 50 tokens by default, and log-probs would not be the policy's.
        """
        prompt = torch.tensor([self.prompt] * count)
        out = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=tokens,
            eos_token_id=self.stop,
            pad_token_id=self.stop,
            return_dict_in_generate=True,
            output_logits=True,
        )
        sampled = out.sequences[:, prompt.shape[1] :]
        logprobs = torch.stack(out.logits, 1).float().log_softmax(-1).gather(2, sampled[..., None])[..., 0]
        return [
            self._line(row, values, at, group)
            for at, (row, values) in enumerate(zip(sampled.tolist(), logprobs.tolist(), strict=True))
        ]

    def _line(self, ids: list[int], logprobs: list[float], at: int, group: str) -> dict[str, Any]:
        end = ids.index(self.stop) + 1 if self.stop in ids else len(ids)
        stopped = ids[end - 1] == self.stop
        text = self.tokenizer.decode(ids[: end - stopped])
        answer = {
            "role": "assistant",
            "content": text,
            "prompt_ids": list(self.prompt),
            "token_ids": ids[:end],
            "logprobs": logprobs[:end],
            "finish_reason": "stop" if stopped else "length",
            "temperature": 1.0,
        }
        return {
            "id": f"{group}-{at}",
            "group_id": group,
            "attempt": at,
            "reward": reward(text, end),
            "messages": [*self.messages, answer],
        }


def _step(exported: Path) -> int:
    try:
        return int(json.loads((exported / "step.json").read_text())["step"])
    except (OSError, ValueError):  # between two exports
        return -1


def write(lines: list[dict[str, Any]], path: Path) -> None:
    """One JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
