"""How fast shards are written, opened, read and verified, beside others in the same run. `python bench/store.py`.

Contenders: Hugging Face datasets (torch and numpy format) and, where installed, MosaicML streaming and litdata; limits:
pyarrow writing ready arrays, a cast in memory, sha256. Interleaved, medians over --repeats; reading in CPU seconds, so
that ratios do not depend on what else the machine does, writing in seconds. Run with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "store"))

COLUMNS = ["token_ids", "sampled", "logprob"]  # what a loader needs of a row
Contender = Callable[[], Any]


def made_rows(n: int, length: int) -> list:
    """`n` rows of `length` tokens like an agent's: turns of some 200 tokens, frequent ids, a fifth of them sampled."""
    from store_rows import sample, trace

    from tracemask.core.vocab import Author, Part, Role
    from tracemask.store.rows import of_sample

    out = []
    for i in range(n):
        rng = np.random.default_rng(i)
        turn = np.cumsum(rng.random(length) < 1 / 200).astype(np.int32)
        sampled = turn % 5 == 2
        columns = {
            "token_ids": np.minimum(rng.zipf(1.3, length), 151_668).astype(np.int32),
            "author": np.where(sampled, Author.POLICY, Author.ENVIRONMENT).astype(np.uint8),
            "role": np.where(sampled, Role.ASSISTANT, Role.TOOL).astype(np.uint8),
            "part": np.where(sampled, Part.CONTENT, Part.TOOL_OUTPUT).astype(np.uint8),
            "message": turn,
            "sampled": sampled,
            "logprob": np.where(sampled, -rng.exponential(size=length), np.nan).astype(np.float32),
        }
        made = sample(f"t{i}", length, **columns)
        out.append(of_sample(made, trace(f"t{i}", group_id=f"g{i // 8}", reward=1.0), index=i))
    return out


def race(contenders: dict[str, Contender], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of each contender by `clock`, taken in turn after one warm-up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            start = clock()
            run()
            if turn:
                times[name].append(clock() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def hugging_face(rows: list, folder: Path) -> Any:
    """The rows as a datasets folder on disk, opened again."""
    import datasets

    datasets.disable_progress_bars()
    path = str(folder / "hf")
    datasets.Dataset.from_dict({name: [row[name] for row in rows] for name in COLUMNS}).save_to_disk(path)
    return datasets.load_from_disk(path)


def mosaic(rows: list, folder: Path) -> Any:
    """The rows as a MosaicML streaming folder (raw bytes a column), opened again."""
    from streaming import LocalDataset, MDSWriter

    columns = {"token_ids": "ndarray:int32", "sampled": "ndarray:uint8", "logprob": "ndarray:float32"}
    with MDSWriter(out=str(folder / "mds"), columns=columns) as writer:
        for row in rows:
            writer.write(
                {"token_ids": row["token_ids"], "sampled": row["sampled"].view(np.uint8), "logprob": row["logprob"]}
            )
    return LocalDataset(str(folder / "mds"))


def lightning(rows: list, folder: Path) -> Any:
    """The rows as a litdata folder (tensors), opened again."""
    import torch
    from litdata import StreamingDataset
    from litdata.streaming.cache import Cache

    path = str(folder / "lit")
    cache = Cache(path, chunk_bytes="64MB")
    for i, row in enumerate(rows):
        cache[i] = {name: torch.from_numpy(row[name].copy()) for name in COLUMNS}
    cache.done()
    cache.merge()
    return StreamingDataset(path)


def random_rows(rows: list, folder: Path, opened: dict[str, Any], repeats: int) -> dict[str, float]:
    """Microseconds from a row number to torch tensors of COLUMNS."""
    import torch

    from tracemask.store.torch_view import tensors

    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    hf, fast, compact = opened["hf"], opened["fast"], opened["compact"]
    torch_format = hf.with_format("torch")
    contenders: dict[str, Contender] = {
        "tracemask fast": lambda: [tensors(fast, i) for i in order],
        "tracemask compact": lambda: [tensors(compact, i) for i in order],
        "datasets torch": lambda: [torch_format[i] for i in order],
        "datasets numpy → torch": lambda: [
            {name: torch.from_numpy(np.asarray(values)) for name, values in row.items()}
            for row in (opened["hf_numpy"][i] for i in order)
        ],
    }
    if "mds" in opened:
        mds = opened["mds"]
        contenders["streaming"] = lambda: [
            {name: torch.from_numpy(values) for name, values in mds[i].items()} for i in order
        ]
    if "lit" in opened:
        contenders["litdata"] = lambda: [opened["lit"][i] for i in order]
    return {name: seconds / len(order) * 1e6 for name, seconds in race(contenders, repeats, time.process_time).items()}


def epoch(rows: list, opened: dict[str, Any], repeats: int) -> dict[str, float]:
    """Million tokens a second of a shuffled epoch: ids copied and cast to int64."""
    from tracemask.store.stream import Stream

    tokens = sum(len(row) for row in rows)
    hf = opened["hf"].select_columns(["token_ids"])
    order = np.random.default_rng(1).permutation(len(rows)).tolist()
    torch_format, numpy_format = hf.with_format("torch"), hf.with_format("numpy")
    ready = [row["token_ids"] for row in rows]

    def ours(name: str) -> Contender:
        return lambda: [
            opened[name].row(i)["token_ids"].astype(np.int64) for unit in Stream(opened[name]) for i in unit
        ]

    contenders: dict[str, Contender] = {
        "tracemask fast": ours("fast_ids"),
        "tracemask compact": ours("compact_ids"),
        "datasets torch": lambda: [torch_format[i]["token_ids"].long() for i in order],
        "datasets numpy": lambda: [numpy_format[i]["token_ids"].astype(np.int64) for i in order],
        "cast of arrays in memory": lambda: [ready[i].astype(np.int64) for i in order],
    }
    if "mds" in opened:
        contenders["streaming"] = lambda: [opened["mds"][i]["token_ids"].astype(np.int64) for i in order]
    if "lit" in opened:
        contenders["litdata"] = lambda: [opened["lit"][i]["token_ids"].long() for i in order]
    return {name: tokens / seconds / 1e6 for name, seconds in race(contenders, repeats, time.process_time).items()}


def writing(rows: list, folder: Path, repeats: int) -> dict[str, float]:
    """Megabytes a second of one shard: ours with hash, sync and receipt, and pyarrow from arrays that are ready."""
    import pyarrow as pa

    from tracemask.store.schema import make_metadata
    from tracemask.store.writer import ShardWriter

    def ours(profile: str) -> int:
        with ShardWriter(str(folder), f"{profile}.arrow", metadata=make_metadata(profile=profile)) as writer:
            for row in rows:
                writer.add(row)
            return writer.commit().bytes

    size = ours("fast")
    batch = pa.ipc.open_file(str(folder / "fast.arrow")).read_all().combine_chunks().to_batches()[0]

    def pyarrow(*, sync: bool) -> None:
        with open(folder / "ready.arrow", "wb") as file:
            with pa.ipc.new_file(file, batch.schema) as writer:
                writer.write_batch(batch)
            if sync:
                file.flush()
                os.fsync(file.fileno())

    def hashed() -> None:
        pyarrow(sync=True)
        hashlib.sha256((folder / "ready.arrow").read_bytes()).digest()

    contenders: dict[str, Contender] = {
        "tracemask fast": lambda: ours("fast"),
        "tracemask compact": lambda: ours("compact"),
        "pyarrow, ready arrays, fsync, sha256": hashed,
        "pyarrow, ready arrays, fsync": lambda: pyarrow(sync=True),
        "pyarrow, ready arrays": lambda: pyarrow(sync=False),
    }
    return {name: size / seconds / 1e6 for name, seconds in race(contenders, repeats, time.perf_counter).items()}


def verifying(path: Path, repeats: int) -> dict[str, float]:
    """Gigabytes a second of the check for changed bytes, beside sha256 of bytes in memory."""
    from tracemask.store.manifest import verify

    size = sum(file.stat().st_size for file in path.iterdir())
    data = os.urandom(min(size, 64 << 20))
    found = race(
        {"verify": lambda: verify(str(path)), "sha256": lambda: hashlib.sha256(data).digest()},
        repeats,
        time.process_time,
    )
    return {"verify": size / found["verify"] / 1e9, "sha256 in memory": len(data) / found["sha256"] / 1e9}


def resuming(n: int) -> dict[str, float]:
    """Milliseconds to resume at the end of an epoch of `n` rows, and microseconds a position after that."""
    from tracemask.store.stream import State, Stream

    class Wide:
        fingerprint = "wide"

        def __len__(self) -> int:
            return n

    start = time.perf_counter()
    stream = Stream(Wide(), seed=1)
    stream.resume(State("wide", 1, 0, n - 100_000, "row", "shuffled"))
    units = iter(stream)
    next(units)
    first = time.perf_counter()
    taken = sum(1 for _ in units)
    return {"resume ms": (first - start) * 1e3, "position us": (time.perf_counter() - first) / taken * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from tracemask.store.commit import write_dataset
    from tracemask.store.reader import open_dataset
    from tracemask.store.schema import make_metadata

    rows = made_rows(options.rows, options.length)
    tokens = sum(len(row) for row in rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        opened: dict[str, Any] = {"hf": hugging_face(rows, folder)}
        opened["hf_numpy"] = opened["hf"].with_format("numpy")
        for profile in ("fast", "compact"):
            path = folder / profile
            write_dataset(str(path), rows, metadata=make_metadata(profile=profile), rows_per_shard=64)
            opened[profile] = open_dataset(path, columns=COLUMNS)
            opened[f"{profile}_ids"] = open_dataset(path, columns=["token_ids"])
        if importlib.util.find_spec("streaming"):
            opened["mds"] = mosaic(rows, folder)
        if importlib.util.find_spec("litdata"):
            opened["lit"] = lightning(rows, folder)
        size = {p: sum(f.stat().st_size for f in (folder / p).glob("*.arrow")) / tokens for p in ("fast", "compact")}
        (folder / "write").mkdir()
        found = {
            "rows": options.rows,
            "tokens per row": options.length,
            "bytes per token": size,
            "random row, us": random_rows(rows, folder, opened, options.repeats),
            "shuffled epoch, Mtok/s": epoch(rows, opened, options.repeats),
            "write, MB/s": writing(rows, folder / "write", options.repeats),
            "verify, GB/s": verifying(folder / "fast", options.repeats),
            "resume in 10^7 rows": resuming(10_000_000),
        }
    text = json.dumps(found, indent=1, ensure_ascii=False)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
