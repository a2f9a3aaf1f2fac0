"""Fifty tool-using rollouts on any tokenizer with its own template: clean data that defects are planted in."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracemask.render.renderer import Renderer
from tracemask.store.row import Row
from tracemask.store.rows import of_sample
from tracemask.trace import Trace

TOOLS = [
    {"type": "function", "function": {"name": "board", "description": "Read a pier board.", "parameters": {
        "type": "object", "properties": {"pier": {"type": "integer"}}, "required": ["pier"]}}},
]  # fmt: skip
SHIPS = ["Orla", "Mirren", "Tessa", "Kestrel", "Brigid", "Halcyon", "Nerys", "Solway", "Aster", "Juno"]
NOTES = ["the tide is low", "fog over the sound", "all crates are counted", "the crew waits", "rain from the west"]
TAILS = ["🛳️🌊 bon voyage", "再见，祝旅途愉快", "👩‍🚀👨‍👩‍👧 aboard", "港の時刻表です", "𝔣𝔢𝔯𝔯𝔶 ⚓️"]


@dataclass(frozen=True)
class Clean:
    """A clean dataset: its rows, the renderer that made them, and which rows were cut off on purpose."""

    rows: list[Row]
    renderer: Renderer
    cut: frozenset[int]


def conversation(rng: random.Random, i: int) -> list[dict[str, Any]]:
    """One run: a question, one to three calls with results, an answer."""
    ship = rng.choice(SHIPS)
    reasoning = lambda words: f"{words.capitalize()}; {rng.choice(NOTES)}."  # noqa: E731
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You keep the ferry timetable. Answer in one sentence."},
        {"role": "user", "content": f"Run {i // 5}: when does the {SHIPS[i // 5 % 10]} leave, and is it late?"},
    ]
    for step in range(1 + i % 3):
        pier = rng.randrange(1, 40)
        messages.append({
            "role": "assistant", "content": "", "reasoning_content": reasoning(f"I should look at pier {pier}"),
            "tool_calls": [{"id": f"call{i:04d}{step}", "type": "function",
                            "function": {"name": "board", "arguments": {"pier": pier}}}],
        })  # fmt: skip
        lines = [
            f"{rng.choice(SHIPS)} {rng.randrange(24):02d}:{rng.randrange(60):02d} {rng.choice(NOTES)}"
            for _ in range(1 + step)
        ]
        messages.append({"role": "tool", "tool_call_id": f"call{i:04d}{step}", "content": "\n".join(lines)})
    time = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
    answer = f"The {ship} leaves at {time}, {rng.choice(NOTES)} (run {i}). {TAILS[i % 5]}"
    messages.append(
        {"role": "assistant", "content": answer, "reasoning_content": reasoning(f"the board for {ship} says so")}
    )
    return messages


def clean(tokenizer: Any, *, template: Any = None, n: int = 50, exact: bool = True, tools: bool = True) -> Clean:
    """`n` rollouts in groups of five with rewards, sampled ids and log-probs; every fifth is cut inside a character."""
    renderer = Renderer(tokenizer, template=template)
    rng = random.Random(7)
    plain = [_trace(conversation(rng, i), i, tools) for i in range(n)]
    rendered = [samples[0] for samples in renderer.render_many(plain)]
    noise = np.random.default_rng(11)
    by_id = noise.uniform(-6, -0.05, renderer.tokenizer.size)
    rows: list[Row] = []
    cut = set()
    for i, (trace, sample) in enumerate(zip(plain, rendered, strict=True)):
        short = i % 5 == 4
        data = trace if not exact else _with_ids(trace, sample, renderer, by_id, noise, short=short)
        for made in renderer.render(data):
            rows.append(of_sample(made, data, index=len(rows)))
        if short and exact:
            cut.add(len(rows) - 1)
    return Clean(rows, renderer, frozenset(cut))


def _trace(messages: list[dict[str, Any]], i: int, tools: bool) -> Trace:
    reward = float(i % 5 in (0, 3))
    return Trace.from_messages(
        messages, tools=TOOLS if tools else None, id=f"run-{i:03d}", group_id=f"task-{i // 5}",
        task_id=f"task-{i // 5}", attempt=i % 5, reward=reward,
    )  # fmt: skip


def _with_ids(trace: Trace, sample: Any, renderer: Renderer, by_id: np.ndarray, noise: Any, *, short: bool) -> Trace:
    """The same run as an engine would log it: ids and log-probs of each reply, the last one cut if `short`."""
    messages = []
    dicts = [message.model_copy(deep=True) for message in trace.messages]
    last = max(i for i, message in enumerate(dicts) if message.role == "assistant")
    for k, message in enumerate(dicts):
        if message.role == "assistant":
            ids = sample.token_ids[(sample.message == k) & sample.sampled].tolist()
            reason = "stop"
            if short and k == last:
                ids, reason = ids[: _inside_character(renderer.tokenizer, ids)], "length"
            logprobs = np.minimum(by_id[ids] + noise.normal(0, 0.05, len(ids)), -1e-3)
            message = message.model_copy(update={"sampled": _sampled(ids, logprobs.tolist(), reason)})
        messages.append(message)
    return trace.model_copy(update={"messages": messages})


def _sampled(ids: list[int], logprobs: list[float], reason: str) -> Any:
    from tracemask.trace.model import Sampled

    return Sampled(token_ids=ids, logprobs=logprobs, finish_reason=reason)


def _inside_character(tokenizer: Any, ids: list[int]) -> int:
    """A length at which the ids end in the middle of a character, near their end."""
    for n in range(len(ids) - 2, 1, -1):
        raw = tokenizer.decode_bytes(ids[:n])
        try:
            raw.decode()
        except UnicodeDecodeError:
            return n
    return len(ids) - 3
