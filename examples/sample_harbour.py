"""Sample real rollouts of a small tool-using task with a Hugging Face causal LM, recording ids and log-probs.

The harness is token-faithful: each call's prompt is the ids so far plus the ids of what came in between, never a text
rendered anew. Temperature 1, whole vocabulary (top_k = 0, top_p = 1), so the recorded log-probs are the policy's own.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

SYSTEM = "You answer questions about boats. To look at the board of a pier, write CHECK and the pier's number."
BOATS = ("Anna", "Berta", "Clara", "Dora", "Emma", "Frieda", "Gerda", "Hanna")


def sample(
    model_path: Path, out: Path, *, rollouts: int = 16, groups: int = 4, seed: int = 0, max_new_tokens: int = 32
) -> dict[str, Any]:
    """Writes `rollouts` JSON lines in `groups` groups to `out`; two policy calls each, a tool output between them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_path, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32, local_files_only=True).eval()
    stop = tokenizer.convert_tokens_to_ids("<|im_end|>")
    torch.manual_seed(seed)
    chance = random.Random(seed)
    tasks = []
    for group in range(groups):
        pier, hour, minute = chance.randrange(1, 10), chance.randrange(6, 20), 5 * chance.randrange(12)
        tasks.append((pier, BOATS[group % len(BOATS)], f"{hour:02d}:{minute:02d}"))
    lines = []
    for index in range(rollouts):
        pier, boat, time = tasks[index % groups]
        ask = f"When does the boat from pier {pier} leave?"
        lines.append(
            {
                "id": f"boat-{index % groups}-{index // groups}",
                "group_id": f"boat-{index % groups}",
                "attempt": index // groups,
                "messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ask}],
                "tool": f"pier {pier}: {boat} leaves at {time}",
                "answer": time,
            }
        )
    lines.sort(key=lambda line: line["id"])
    contexts = [
        tokenizer.apply_chat_template(line["messages"], add_generation_prompt=True, return_dict=False) for line in lines
    ]
    for call in range(2):
        replies = generate(model, contexts, stop=stop, max_new_tokens=max_new_tokens)
        for line, context, (ids, logprobs) in zip(lines, contexts, replies, strict=True):
            ended = ids[-1] == stop
            text = tokenizer.decode(ids[:-1] if ended else ids)
            line["messages"].append(
                {
                    "role": "assistant",
                    "content": text,
                    "prompt_ids": list(context),
                    "token_ids": ids,
                    "logprobs": logprobs,
                    "finish_reason": "stop" if ended else "length",
                    "model": model_path.name,
                    "temperature": 1.0,
                }
            )
            if call == 0:
                line["messages"].append({"role": "user", "content": line["tool"], "author": "environment"})
                closer = "" if ended else "<|im_end|>"
                told = f"<|im_start|>user\n{line['tool']}<|im_end|>\n"
                between = f"{closer}\n{told}<|im_start|>assistant\n"
                context += ids + tokenizer.encode(between, add_special_tokens=False)
    with out.open("w", encoding="utf-8") as file:
        for line in lines:
            answer = line.pop("answer")
            line.pop("tool")
            line["reward"] = float(answer in line["messages"][-1]["content"])
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    rewards = [line["reward"] for line in lines]
    return {"rollouts": len(lines), "mean_reward": sum(rewards) / len(rewards)}


def generate(
    model: Any, contexts: list[list[int]], *, stop: int, max_new_tokens: int
) -> list[tuple[list[int], list[float]]]:
    """One sampled continuation per context: ids up to and with the stop, and log p of each. Left-padded batch."""
    import torch

    width = max(map(len, contexts))
    ids = torch.tensor([[stop] * (width - len(context)) + list(context) for context in contexts])
    mask = torch.tensor([[0] * (width - len(context)) + [1] * len(context) for context in contexts])
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=max_new_tokens,
            eos_token_id=stop,
            pad_token_id=stop,
            return_dict_in_generate=True,
            output_logits=True,
        )
    sampled = out.sequences[:, width:]
    logprobs = torch.stack(out.logits, 1).float().log_softmax(-1).gather(2, sampled[..., None])[..., 0]
    replies = []
    for row, values in zip(sampled.tolist(), logprobs.tolist(), strict=True):
        end = row.index(stop) + 1 if stop in row else len(row)
        replies.append((row[:end], [round(value, 6) for value in values[:end]]))
    return replies
