"""Rendering with provenance, in this process and in the worker, beside plain Jinja and beside encoding. JSON out."""

from __future__ import annotations

import json
import os
import platform
import random
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracemask.render.engine import Job
from tracemask.render.template import Template

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / "fixtures" / ".cache"
TRACES = 40
ROUNDS = 7
PROSE = (
    "quay berth tide pilot mooring cargo manifest crane bollard harbour ledger vessel draught anchor beacon lantern "
    "custom duty north south wind knots fog signal schedule departs arrives delayed inspection fuel ropes crew"
)
WORDS = PROSE.split()


def prose(draw: random.Random, words: int) -> str:
    """Words with punctuation and a number now and then."""
    return " ".join(
        draw.choice(WORDS) + draw.choice(("", "", "", ",", ".", f" {draw.randrange(999)}")) for _ in range(words)
    )


def agent_trace(draw: random.Random, turns: int) -> list[dict[str, Any]]:
    """System, task, then `turns` pairs of a reasoned tool call and its output, then an answer."""
    chat: list[dict[str, Any]] = [
        {"role": "system", "content": prose(draw, 150)},
        {"role": "user", "content": prose(draw, 120)},
    ]
    for turn in range(turns):
        function = {"name": "lookup", "arguments": {"quay": prose(draw, 6), "day": draw.randrange(31)}}
        calls = [{"id": f"call{turn:05}", "type": "function", "function": function}]
        fields = {"reasoning_content": prose(draw, 60), "tool_calls": calls}
        chat.append({"role": "assistant", "content": prose(draw, 15), **fields})
        chat.append({"role": "tool", "tool_call_id": f"call{turn:05}", "name": "lookup", "content": prose(draw, 70)})
    chat.append({"role": "assistant", "content": prose(draw, 60), "reasoning_content": prose(draw, 30)})
    return chat


def interleaved(actions: dict[str, Callable[[], object]], clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of each action over ROUNDS, all actions in every round."""
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for act in actions.values():
        act()
    for _ in range(ROUNDS):
        for name, act in actions.items():
            start = clock()
            act()
            taken[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def measured(name: str, source: str, tokenizer: Path) -> dict[str, Any]:
    """Milliseconds a trace, and the share of encoding."""
    from tokenizers import Tokenizer
    from transformers.utils.chat_template_utils import _compile_jinja_template  # pyright: ignore

    draw = random.Random(7)
    chats = [agent_trace(draw, draw.randint(6, 15)) for _ in range(TRACES)]
    tools = [{"type": "function", "function": {"name": "lookup", "description": prose(draw, 30), "parameters": {}}}]
    inline = Template(source, name=name, tokens={"bos_token": "<BOS>"}, sandbox="inline")
    worker = Template(source, name=name, tokens={"bos_token": "<BOS>"}, sandbox="worker")
    plain = _compile_jinja_template(source)
    vocabulary = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    texts = [inline.render(chat, tools=tools).text for chat in chats]
    jobs = [Job(chat, tools) for chat in chats]
    actions: dict[str, Callable[[], object]] = {
        "inline": lambda: [inline.render(chat, tools=tools) for chat in chats],
        "worker": lambda: [worker.render(chat, tools=tools) for chat in chats],
        "worker_batched": lambda: worker.render_many(jobs),
        "jinja": lambda: [plain.render(messages=chat, tools=tools, bos_token="<BOS>") for chat in chats],
        "encode": lambda: vocabulary.encode_batch_fast(texts),
    }
    wall = interleaved({key: actions[key] for key in ("worker", "worker_batched", "inline")}, time.perf_counter)
    cpu = interleaved(actions, time.process_time)  # of this process alone: the worker's own time is not in it
    return {
        "template": name,
        "traces": TRACES,
        "messages": sum(map(len, chats)),
        "characters": sum(map(len, texts)),
        "cpu_ms_per_trace": {key: round(seconds / TRACES * 1e3, 3) for key, seconds in cpu.items()},
        "wall_ms_per_trace": {key: round(seconds / TRACES * 1e3, 3) for key, seconds in wall.items()},
        "inline_over_jinja": round(cpu["inline"] / cpu["jinja"], 2),
        "inline_over_encode": round(cpu["inline"] / cpu["encode"], 3),
        "worker_own_side_over_encode": round(cpu["worker"] / cpu["encode"], 3),
    }


def slope(source: str) -> dict[str, Any]:
    """Time against turns, and the exponent between the ends."""
    from math import log

    template = Template(source, sandbox="inline")
    draw = random.Random(3)
    turns = (10, 20, 40, 80, 160)
    chats = {count: agent_trace(draw, count) for count in turns}
    seconds = interleaved({str(n): lambda n=n: template.render(chats[n]) for n in turns}, time.process_time)
    first, last = seconds[str(turns[0])], seconds[str(turns[-1])]
    return {
        "ms": {count: round(value * 1e3, 3) for count, value in seconds.items()},
        "exponent": round(log(last / first) / log(turns[-1] / turns[0]), 2),
    }


def main() -> None:
    """Print and keep the numbers."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    rows = []
    for name in ("qwen3", "llama3_1", "deepseek_v3"):
        folder = CACHE / "tokenizers" / name
        config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        rows.append(measured(name, config["chat_template"], folder))
    qwen = json.loads((CACHE / "tokenizers" / "qwen3" / "tokenizer_config.json").read_text(encoding="utf-8"))
    result = {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "platform": platform.platform()},
        "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        "templates": rows,
        "turns": slope(qwen["chat_template"]),
    }
    out = ROOT / "bench" / "results" / "templates.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
