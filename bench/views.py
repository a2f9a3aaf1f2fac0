"""Time and size of the views: a 200,000-token row as a dump and as a page, against decoding its ids once. JSON out."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tracemask.core.vocab import Author
from tracemask.render.tokenizer import Tokenizer
from tracemask.report.dump import View, dump
from tracemask.report.html import page
from tracemask.report.page import Page
from tracemask.store.row import Row

ROOT = Path(__file__).resolve().parents[1]
TOKENS = 200_000


def long_row(tokenizer: Tokenizer) -> Row:
    """Agent-like: short policy turns between long tool outputs."""
    text = "".join(
        f"line {i}: the harbour log says {i * 7 % 100} boats came in, three left again.\n" for i in range(20_000)
    )
    ids = np.array(tokenizer.encode(text)[:TOKENS], np.int32)
    turn = np.arange(len(ids)) // 200
    policy = turn % 5 == 0
    return Row(
        0,
        {
            "token_ids": ids,
            "author": np.where(policy, Author.POLICY, Author.ENVIRONMENT).astype(np.uint8),
            "message": turn.astype(np.int32),
            "sampled": policy,
            "logprob": np.where(policy, -0.5, np.nan).astype(np.float32),
        },
    )


def median(run: Callable[[], object], *, times: int = 5) -> float:
    """Median seconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def main() -> None:
    """Print and keep the numbers."""
    tokenizer = Tokenizer.load(ROOT / "fixtures" / "tokenizers" / "small")
    row = long_row(tokenizer)
    result = {
        "tokens": len(row),
        "decode_s": median(lambda: tokenizer.decode_bytes(row["token_ids"].tolist())),
        "dump_s": median(lambda: [line.plain for line in dump(row, tokenizer)]),
        "dump_full_ids_s": median(
            lambda: [line.plain for line in dump(row, tokenizer, view=View(full=True, ids=True))]
        ),
        "page_s": median(lambda: page(Page("bench", tokenizer).data([row]))),
        "page_bytes": len(page(Page("bench", tokenizer).data([row])).encode()),
    }
    out = ROOT / "bench" / "results" / "views.json"
    out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
