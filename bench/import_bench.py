"""Import speed before tokenising, against json and orjson alone in the same run, and peak memory on a big file.

    python bench/import_bench.py [--mb 64] [--memory-gb 1.0] [--out bench/results/import.json]

text: agent rollouts whose tokens are not in the log, 15 messages each, of 1.3, 3.4 and 5.3 kB on average.
decimal, base64: rollouts with ids and
log-probs, in our own form. Each reader runs in turn, several rounds, and the median counts. MB are 10**6 bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson

from tracemask.trace import Trace, read_traces
from tracemask.trace.jsonl import Arrays, dumps, to_json

ROUNDS = 5
OUTPUTS = {"text 1.3 kB": 500, "text 3.4 kB": 1500, "text 5.3 kB": 2500}  # words of a tool's output
WORDS = [
    "the",
    "tide",
    "table",
    "of",
    "pier",
    "four",
    "says",
    "that",
    "low",
    "water",
    "comes",
    "at",
    "nine",
    "and",
    "the",
    "keeper",
    "wrote",
    "it",
    "down",
    "twice\n",
]


def text_row(number: int, output: int) -> dict[str, Any]:
    """One rollout: system, task, 6 rounds of a call and its output, an answer."""

    def words(count: int, salt: int) -> str:
        return " ".join(WORDS[(salt * 7 + i) % len(WORDS)] for i in range(count))

    messages: list[dict[str, Any]] = [
        {"role": "system", "content": words(300, number)},
        {"role": "user", "content": words(200, number + 1)},
    ]
    for turn in range(6):
        call = {
            "id": f"c{turn}",
            "type": "function",
            "function": {"name": "read", "arguments": f'{{"path": "log/{number}.txt"}}'},
        }
        messages.append(
            {"role": "assistant", "content": "", "reasoning_content": words(60, turn), "tool_calls": [call]}
        )
        messages.append({"role": "tool", "tool_call_id": f"c{turn}", "content": words(output, turn + number)})
    messages.append({"role": "assistant", "content": words(50, number + 2)})
    return {"id": f"r{number}", "group_id": f"g{number // 8}", "reward": 1.0, "messages": messages}


def token_trace(number: int) -> Trace:
    """One rollout with 4,000 sampled ids and log-probs and their prompt."""
    ids = [(number * 7919 + t * 104729) % 151643 for t in range(4000)]
    logprobs = [-(t % 97) / 96 - 1e-6 for t in range(4000)]
    reply = {
        "role": "assistant",
        "content": "x" * 400,
        "token_ids": ids,
        "logprobs": logprobs,
        "prompt_ids": ids[:2000],
    }
    return Trace.from_messages([{"role": "user", "content": "q"}, reply], id=f"t{number}")


def lines(kind: str) -> Iterator[bytes]:
    """Endless lines of one kind."""
    number = 0
    while True:
        if kind in OUTPUTS:
            yield dumps(text_row(number, OUTPUTS[kind]))
        else:
            yield dumps(to_json(token_trace(number), arrays=Arrays.BASE64 if kind == "base64" else Arrays.LIST))
        number += 1


def write(path: Path, kind: str, size: int) -> int:
    """At least `size` bytes; a block of distinct rollouts is repeated."""
    source = lines(kind)
    block = b"".join(next(source) + b"\n" for _ in range(64))
    with path.open("wb") as file:
        written = 0
        while written < size:
            written += file.write(block)
    return written


def each_line(loads: Callable[[bytes], Any]) -> Callable[[Path], None]:
    def run(path: Path) -> None:
        with path.open("rb") as file:
            for line in file:
                loads(line)

    return run


def traces(path: Path) -> None:
    for _ in read_traces(path):
        pass


READERS: dict[str, Callable[[Path], None]] = {
    "json": each_line(json.loads),
    "orjson": each_line(orjson.loads),
    "tracemask": traces,
}


def speeds(path: Path, size: int) -> dict[str, float]:
    """MB/s of each reader: interleaved rounds, medians of CPU time (the machine is shared)."""
    seconds: dict[str, list[float]] = {name: [] for name in READERS}
    for _ in range(ROUNDS):
        for name, reader in READERS.items():
            start = time.process_time()
            reader(path)
            seconds[name].append(time.process_time() - start)
    return {name: round(size / 1e6 / statistics.median(times), 1) for name, times in seconds.items()}


def peak_memory(path: Path) -> int:
    """Peak resident MB of a fresh process that reads the file."""
    code = (
        f"from tracemask.trace import read_traces\nfor _ in read_traces({str(path)!r}): pass\n"
        "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout) // 1024


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mb", type=float, default=48.0)
    options.add_argument("--memory-gb", type=float, default=0.0)
    options.add_argument("--out", type=Path)
    asked = options.parse_args()
    result: dict[str, Any] = {"unit": "MB/s of one core, CPU time, median of 5", "mb": asked.mb}
    with tempfile.TemporaryDirectory() as folder:
        for kind in (*OUTPUTS, "decimal", "base64"):
            path = Path(folder) / "log.jsonl"
            size = write(path, kind, int(asked.mb * 1e6))
            result[kind] = speeds(path, size)
            path.unlink()
            print(kind, result[kind])
        if asked.memory_gb:
            path = Path(folder) / "big.jsonl"
            size = write(path, "text 3.4 kB", int(asked.memory_gb * 1e9))
            result["peak_memory_mb"] = {"file_mb": size // 10**6, "resident": peak_memory(path)}
            print("peak memory", result["peak_memory_mb"])
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(result, indent=2) + os.linesep)


if __name__ == "__main__":
    main()
