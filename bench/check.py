"""How fast check is: all model-free rules, against the package encoding the same tokens once.

`python bench/check.py [--tokenizer DIR]` prints one JSON line: tokens, seconds of the check and of one encoding
(interleaved, medians), their ratio, by the clock and by the CPU (which a busy machine disturbs less), tokens per
second, and the growth of memory from one to four copies of the data. Only system prompts and headers repeat.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "check"))


def rows_of(data: list, times: int) -> Iterator:
    """The rows `times` over, each copy told apart by a digit, so that no run of text repeats between copies."""
    from tracemask.store.row import Row

    for copy in range(times):
        for row in data:
            yield Row(copy * len(data) + row.index, row.columns, row.scalars)


def varied(tokenizer, template, n: int) -> list:
    """`n` rollouts with tool outputs of some hundred tokens that no other rollout has."""
    import random

    from check_rollouts import NOTES, SHIPS, TOOLS, conversation

    from tracemask.render.renderer import Renderer
    from tracemask.store.rows import of_sample
    from tracemask.trace import Trace

    rng = random.Random(1)
    renderer = Renderer(tokenizer, template=template)
    traces = []
    for i in range(n):
        messages = conversation(rng, i)
        for message in messages:
            if message["role"] == "tool":
                lines = [f"{rng.choice(SHIPS)} {rng.randrange(10**6)} {rng.choice(NOTES)}" for _ in range(40)]
                message["content"] = "\n".join(lines)
        traces.append(
            Trace.from_messages(messages, tools=TOOLS, id=f"r{i}", group_id=f"g{i // 5}", reward=float(i % 2))
        )
    out = []
    for trace, samples in zip(traces, renderer.render_many(traces), strict=True):
        out.append(of_sample(samples[0], trace, index=len(out)))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", default=str(ROOT / "fixtures" / ".cache" / "tokenizers" / "qwen3"))
    parser.add_argument("--rollouts", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    import numpy as np

    from tracemask.check.runner import check_dataset
    from tracemask.render.template import Template
    from tracemask.render.tokenizer import Tokenizer

    tokenizer = Tokenizer.load(options.tokenizer)
    template = Template(tokenizer.chat_template, tokens=tokenizer.token_strings)
    data = varied(tokenizer, template, options.rollouts)
    for row in data:
        row.columns["logprob"] = np.where(row["sampled"], -0.3 - row["token_ids"] % 97 / 31, np.nan).astype(np.float32)
    tokens = sum(len(row) for row in data)
    texts = [tokenizer.decode_bytes(row["token_ids"]).decode() for row in data]
    check_dataset(data[:2], tokenizer=tokenizer, template=template)
    tokenizer.reference.encode_batch(texts[:2])
    check, encode, check_cpu, encode_cpu = [], [], [], []
    for _ in range(options.repeats):
        start, cpu = time.perf_counter(), time.process_time()
        tokenizer.reference.encode_batch(texts)
        encode.append(time.perf_counter() - start)
        encode_cpu.append(time.process_time() - cpu)
        start, cpu = time.perf_counter(), time.process_time()
        report = check_dataset(data, tokenizer=tokenizer, template=template)
        check.append(time.perf_counter() - start)
        check_cpu.append(time.process_time() - cpu)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    check_dataset(rows_of(data, 4), tokenizer=tokenizer, template=template)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took, once = statistics.median(check), statistics.median(encode)
    cpu, once_cpu = statistics.median(check_cpu), statistics.median(encode_cpu)
    print(json.dumps({
        "tokens": tokens, "rows": len(data), "check_s": round(took, 3), "encode_s": round(once, 3),
        "ratio": round(took / once, 2), "tokens_per_s": round(tokens / took), "rules": len(report.ran),
        "check_cpu_s": round(cpu, 3), "encode_cpu_s": round(once_cpu, 3), "cpu_ratio": round(cpu / once_cpu, 2),
        "tokens_per_cpu_s": round(tokens / cpu),
        "codes": report.codes, "memory_growth_mb": round((after - before) / 1024, 1),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
