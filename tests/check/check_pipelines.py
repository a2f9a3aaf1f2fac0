"""Token datasets as other people's pipelines write them: transformers' masks and labels, padding, packing, RL dumps."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

WORDS = [
    "Orla leaves at 07:40.", "再见，祝旅途愉快 🛳️", "def f(x):\n    return x*2\n", "| a | b |\n|---|---|\n| 1 | 2 |",
    "Ça va très bien, naïve café.", "   leading spaces and tabs\t\tend", " 12345678 ", "👩‍🚀👨‍👩‍👧",
    "The answer is 42.\n\nBecause six times seven.", "https://example.org/a?b=c&d=e",
]  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "board", "description": "Read a pier board.", "parameters": {
        "type": "object", "properties": {"pier": {"type": "integer"}}, "required": ["pier"]}}},
]  # fmt: skip

Row = tuple[list[int], list[int]]  # ids and mask
Record = dict[str, Any]


def conversations(*, tools: bool, steps: int, n: int = 12) -> Iterator[list[Record]]:
    """`n` chats, or chats with up to `steps` calls of a tool before the answer."""
    rng = random.Random(5)
    for i in range(n):
        talk: list[Record] = [{"role": "system", "content": "Be brief."}] if i % 3 != 2 else []
        talk.append({"role": "user", "content": f"Question {i}: {rng.choice(WORDS)}"})
        for step in range(1 + i % steps):
            if tools:
                function = {"name": "board", "arguments": {"pier": rng.randrange(40)}}
                call = {"id": f"call{i:04d}{step}", "type": "function", "function": function}
                talk.append({"role": "assistant", "content": rng.choice(["", "Let me look."]), "tool_calls": [call]})
                talk.append({"role": "tool", "name": "board", "tool_call_id": call["id"], "content": rng.choice(WORDS)})
            elif step:
                talk.append({"role": "assistant", "content": rng.choice(WORDS)})
                talk.append({"role": "user", "content": rng.choice(WORDS)})
        talk.append({"role": "assistant", "content": f"{rng.choice(WORDS)} ({i})"})
        yield talk


def rendered(folder: Path, template: str, *, tools: bool, steps: int) -> tuple[list[Row], int]:
    """Ids and masks of transformers' own `apply_chat_template` with a template that marks generation, and a pad id."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(folder))
    out = []
    for talk in conversations(tools=tools, steps=steps):
        made = tokenizer.apply_chat_template(
            talk, chat_template=template, tools=TOOLS if tools else None, return_assistant_tokens_mask=True,
            return_dict=True, tokenize=True,
        )  # fmt: skip
        out.append((list(made["input_ids"]), [int(on) for on in made["assistant_masks"]]))
    pad = tokenizer.pad_token_id
    return out, tokenizer.eos_token_id if pad is None else pad


def labels(ids: list[int], mask: list[int]) -> list[int]:
    """−100 outside the mask."""
    return [token if on else -100 for token, on in zip(ids, mask, strict=True)]


def supervised(rows: list[Row]) -> dict[str, list[Record]]:
    """One document a record, unpadded."""
    return {
        "assistant_masks": [{"input_ids": i, "assistant_masks": m} for i, m in rows],
        "bool mask": [{"input_ids": i, "loss_mask": [bool(on) for on in m]} for i, m in rows],
        "float mask": [{"input_ids": i, "loss_mask": [float(on) for on in m]} for i, m in rows],
        "labels": [{"input_ids": i, "labels": labels(i, m), "attention_mask": [1] * len(i)} for i, m in rows],
    }


def padded(rows: list[Row], pad: int) -> dict[str, list[Record]]:
    """To one length, on either side, with the position ids that transformers makes."""
    size = max(len(ids) for ids, _ in rows) + 7
    right, left, ones, bare = [], [], [], []
    for ids, mask in rows:
        gap, n = size - len(ids), len(ids)
        hidden = [0] * gap
        right.append({"input_ids": ids + [pad] * gap, "labels": labels(ids, mask) + [-100] * gap,
                      "attention_mask": [1] * n + hidden, "position_ids": [*range(n), *hidden]})  # fmt: skip
        left.append({"input_ids": [pad] * gap + ids, "labels": [-100] * gap + labels(ids, mask),
                     "attention_mask": hidden + [1] * n, "position_ids": [*hidden, *range(n)]})  # fmt: skip
        ones.append({**left[-1], "position_ids": [1] * gap + [*range(n)]})
        bare.append({"input_ids": [pad] * gap + ids, "loss_mask": hidden + mask})
    return {"padded right": right, "padded left": left, "padded left, positions 1": ones, "padded, no attention": bare}


def packed(rows: list[Row]) -> dict[str, list[Record]]:
    """Three documents a record; where each begins is said in one of five ways, or not at all."""
    out: dict[str, list[Record]] = {}
    for at in range(0, len(rows), 3):
        docs = rows[at : at + 3]
        ids = [token for doc, _ in docs for token in doc]
        sizes = [len(doc) for doc, _ in docs]
        base = {"input_ids": ids, "labels": [x for doc, m in docs for x in [-100, *labels(doc, m)[1:]]]}
        says = {
            "position_ids": [p for n in sizes for p in range(n)],
            "seq_lengths": sizes,
            "cu_seqlens": [0, *accumulate(sizes)],
            "seq_idx": [k for k, n in enumerate(sizes) for _ in range(n)],
            "attention_mask": [k + 1 for k, n in enumerate(sizes) for _ in range(n)],
        }
        for name, values in says.items():
            out.setdefault(f"packed, {name}", []).append({**base, name: values})
        out.setdefault("packed", []).append(base)
    return out


def last_reply(ids: list[int], mask: list[int]) -> tuple[list[int], list[int]]:
    """(prompt, completion): the last trained span is the completion."""
    end = max(i for i, on in enumerate(mask) if on) + 1
    start = end - 1
    while start and mask[start - 1]:
        start -= 1
    return ids[:start], ids[start:end]


def rollouts(rows: list[Row], pad: int) -> dict[str, list[Record]]:
    """Prompt and completion apart, as verl, TRL's GRPO, prime-rl and SkyRL keep them."""
    rng = random.Random(9)
    split = [last_reply(ids, mask) for ids, mask in rows]
    long, wide = max(len(prompt) for prompt, _ in split) + 3, max(len(reply) for _, reply in split) + 5
    out: dict[str, list[Record]] = {name: [] for name in ("prompt and completion", "prime-rl", "SkyRL", "verl", "TRL")}
    for k, (prompt, reply) in enumerate(split):
        lead, gap, n = long - len(prompt), wide - len(reply), len(prompt) + len(reply)
        given = [-rng.uniform(0.01, 4) for _ in reply]
        reward, group = float(k % 2), f"g{k}"
        zeros = [0.0] * gap
        out["prompt and completion"].append({"prompt_ids": prompt, "completion_ids": reply})
        out["prime-rl"].append({
            "prompt_ids": prompt, "prompt_mask": [0] * len(prompt), "completion_ids": reply,
            "completion_mask": [1] * len(reply), "completion_logprobs": given, "advantage": reward - 0.5,
            "reward": reward, "example_id": group})  # fmt: skip
        out["SkyRL"].append({"prompt_token_ids": prompt, "response_ids": reply, "loss_mask": [1] * len(reply),
                             "rewards": reward, "rollout_logprobs": given})  # fmt: skip
        out["verl"].append({
            "prompts": [pad] * lead + prompt, "responses": reply + [pad] * gap,
            "input_ids": [pad] * lead + prompt + reply + [pad] * gap,
            "attention_mask": [0] * lead + [1] * n + [0] * gap, "position_ids": [0] * lead + [*range(n + gap)],
            "response_mask": [1] * len(reply) + [0] * gap, "rollout_log_probs": given + zeros,
            "old_log_probs": given + zeros, "token_level_scores": [0.0] * (len(reply) - 1) + [reward] + zeros,
            "advantages": [reward - 0.5] * len(reply) + zeros, "uid": group})  # fmt: skip
        out["TRL"].append({
            "prompt_ids": [pad] * lead + prompt, "prompt_mask": [0] * lead + [1] * len(prompt),
            "completion_ids": reply + [pad] * gap, "completion_mask": [1] * len(reply) + [0] * gap,
            "sampling_per_token_logps": given + zeros, "advantages": reward - 0.5})  # fmt: skip
    return out


def every_form(rows: list[Row], pad: int) -> dict[str, list[Record]]:
    """All of the above, by name."""
    return {**supervised(rows), **padded(rows, pad), **packed(rows), **rollouts(rows, pad)}


def write(path: Path, records: list[Record]) -> str:
    """As JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return str(path)


# ------------------------------------------------------------------------------------------------ defects


def spans(mask: list[int]) -> list[tuple[int, int]]:
    """Half-open runs of 1."""
    cuts = [i for i in range(len(mask) + 1) if (mask[i : i + 1] or [0])[0] != (mask[i - 1] if i else 0)]
    return list(zip(cuts[::2], cuts[1::2], strict=True))


def trimmed(rows: list[Row], blank: set[int]) -> list[Row]:
    """The rows without the white space that trl's templates train behind a stop."""
    out = []
    for ids, mask in rows:
        mask = [int(on and not (token in blank and (mask[i + 1 : i + 2] or [0]) == [0]))
                for i, (token, on) in enumerate(zip(ids, mask, strict=True))]  # fmt: skip
        out.append((ids, mask))
    return out


def moved(d: int) -> Any:
    return lambda ids, mask: (ids, [mask[i - d] if 0 <= i - d < len(mask) else 0 for i in range(len(mask))])


def without(ids: list[int], mask: list[int], places: Any) -> Row:
    gone = {place(span) for span in spans(mask) for place in (places,)}
    return ids, [int(on and i not in gone) for i, on in enumerate(mask)]


def _header(ids: list[int], mask: list[int]) -> Row:
    start, _ = spans(mask)[0]
    return ids, [int(on or start - 2 <= i < start) for i, on in enumerate(mask)]


def _to_the_end(ids: list[int], mask: list[int]) -> Row:
    start, _ = spans(mask)[0]
    return ids, [int(i >= start) for i in range(len(mask))]


def _last_only(ids: list[int], mask: list[int]) -> Row:
    start, _ = spans(mask)[-1]
    return ids, [int(on and i >= start) for i, on in enumerate(mask)]


def _stop_lost(ids: list[int], mask: list[int]) -> Row:
    _, end = spans(mask)[0]
    return ids[: end - 1] + ids[end:], mask[: end - 1] + mask[end:]


def _talks_on(ids: list[int], mask: list[int]) -> Row:
    start, end = spans(mask)[0]
    more = ids[start : end - 1][-4:] + [ids[end - 1]]
    return ids[:end] + more + ids[end:], mask[:end] + [1] * len(more) + mask[end:]


def _cut_off(ids: list[int], mask: list[int]) -> Row:
    _, end = spans(mask)[-1]
    return ids[: end - 2], mask[: end - 2]


def _unknown_id(ids: list[int], mask: list[int]) -> Row:
    start, _ = spans(mask)[0]
    return [*ids[:start], 999_999, *ids[start + 1 :]], mask


# name -> (what is done to a row of two replies or more, the code that must be found)
DEFECTS: dict[str, tuple[Any, str]] = {
    "shifted by +1": (moved(1), "TM302"),
    "shifted by -1": (moved(-1), "TM302"),
    "shifted by +2": (moved(2), "TM302"),
    "shifted by -2": (moved(-2), "TM302"),
    "stop not trained": (lambda ids, mask: without(ids, mask, lambda span: span[1] - 1), "TM305"),
    "first token not trained": (lambda ids, mask: without(ids, mask, lambda span: span[0]), "TM309"),
    "header trained": (_header, "TM307"),
    "inverted": (lambda ids, mask: (ids, [1 - on for on in mask]), "TM308"),
    "runs to the end": (_to_the_end, "TM313"),
    "last reply only": (_last_only, "TM311"),
    "stop lost": (_stop_lost, "TM316"),
    "talks on": (_talks_on, "TM317"),
    "cut off": (_cut_off, "TM107"),
    "id unknown": (_unknown_id, "TM201"),
}
