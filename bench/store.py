"""How fast shards are written, opened, read and verified, beside others in the same run. `python bench/store.py`.

Contenders: Hugging Face datasets (torch and numpy format) and, where installed, MosaicML streaming and litdata; limits:
pyarrow writing ready arrays, a cast in memory, sha256. Interleaved, medians over --repeats. Reading is in processor
seconds, so that ratios do not depend on what else the machine does; writing in both, because threads that write, hash
and sync beside each other need a second free core. Run with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from store_contenders import COLUMNS, PEERS, hugging_face, made_rows, peers, text_rows

Contender = Callable[[], Any]
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "processor": time.process_time}


def race(
    contenders: dict[str, Contender], repeats: int, *clocks: str, before: Contender = lambda: None
) -> dict[str, dict[str, float]]:
    """Per clock, the median seconds of each contender, taken in turn after one warm-up. before: not timed."""
    taken: dict[str, dict[str, list[float]]] = {clock: {name: [] for name in contenders} for clock in clocks}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            before()
            starts = [CLOCKS[clock]() for clock in clocks]
            run()
            for clock, start in zip(clocks, starts, strict=True):
                if turn:
                    taken[clock][name].append(CLOCKS[clock]() - start)
    return {clock: {name: statistics.median(found) for name, found in times.items()} for clock, times in taken.items()}


def each(run: Callable[[int], Any], order: list[int]) -> Contender:
    """Runs through `order`; what it gives is dropped, as a loader drops it."""

    def contender() -> None:
        for i in order:
            run(i)

    return contender


def random_rows(rows: list, opened: dict[str, Any], repeats: int) -> dict[str, float]:
    """Microseconds from a row number to torch tensors of COLUMNS."""
    import torch

    from tracemask.store.torch_view import tensors

    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    hf, fast, compact = opened["hf"], opened["fast"], opened["compact"]
    torch_format = hf.with_format("torch")

    def from_numpy(row: dict[str, Any]) -> dict[str, Any]:
        return {name: torch.from_numpy(np.asarray(values)) for name, values in row.items()}

    runs: dict[str, Callable[[int], Any]] = {
        "tracemask fast": lambda i: tensors(fast, i),
        "tracemask compact": lambda i: tensors(compact, i),
        "datasets torch": lambda i: torch_format[i],
        "datasets numpy → torch": lambda i: from_numpy(opened["hf_numpy"][i]),
    }
    if "mds" in opened:
        runs["streaming"] = lambda i: from_numpy(opened["mds"][i])
    if "lit" in opened:
        runs["litdata"] = lambda i: opened["lit"][i]
    found = race({name: each(run, order) for name, run in runs.items()}, repeats, "processor")["processor"]
    return {name: seconds / len(order) * 1e6 for name, seconds in found.items()}


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
    found = race(contenders, repeats, "processor")["processor"]
    return {name: tokens / seconds / 1e6 for name, seconds in found.items()}


def writing(rows: list, folder: Path, repeats: int) -> dict[str, dict[str, float]]:
    """Megabytes a second of one shard: ours with hash, sync and receipt, and pyarrow from arrays that are ready.

    Megabytes are those of the uncompressed shard for every contender. The rows are taken four times: a shard is some
    hundred megabytes, and what it costs once should weigh as it does there.
    """
    import pyarrow as pa

    from tracemask.store.schema import make_metadata
    from tracemask.store.writer import ShardWriter

    rows = rows * 4

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
    found = race(contenders, repeats, "wall", "processor", before=os.sync)  # what one left unsynced is not the next's
    return {clock: {name: size / seconds / 1e6 for name, seconds in times.items()} for clock, times in found.items()}


def verifying(path: Path, repeats: int) -> dict[str, float]:
    """Gigabytes a second of the check for changed bytes, beside sha256 of bytes in memory."""
    from tracemask.store.manifest import verify

    size = sum(file.stat().st_size for file in path.iterdir())
    data = os.urandom(min(size, 64 << 20))
    contenders: dict[str, Contender] = {
        "verify": lambda: verify(str(path)),
        "sha256": lambda: hashlib.sha256(data).digest(),
    }
    found = race(contenders, repeats, "processor")["processor"]
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


def bytes_per_token(rows: list, folder: Path) -> dict[str, float]:
    """What a token takes on disk in either profile."""
    from tracemask.store.commit import write_dataset
    from tracemask.store.schema import make_metadata

    tokens = sum(map(len, rows))
    out = {}
    for profile in ("fast", "compact"):
        write_dataset(str(folder / profile), rows, metadata=make_metadata(profile=profile), rows_per_shard=64)
        out[profile] = sum(file.stat().st_size for file in (folder / profile).glob("*.arrow")) / tokens
    return out


def machine() -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    versions = {}
    for name in ("pyarrow", "numpy", "torch", "datasets", *(package for _, package in PEERS.values())):
        with contextlib.suppress(PackageNotFoundError):
            versions[name] = version(name)
    return {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1), **versions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    from tracemask.store.reader import open_dataset

    rows = made_rows(options.rows, options.length)
    missing: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        opened: dict[str, Any] = {"hf": hugging_face(rows, folder)}
        opened["hf_numpy"] = opened["hf"].with_format("numpy")
        opened |= peers(rows, folder, missing)
        size = {"random log-probs, Zipf ids": bytes_per_token(rows, folder)}
        size["prose and code"] = bytes_per_token(text_rows(rows), folder / "text")
        for profile in ("fast", "compact"):
            opened[profile] = open_dataset(folder / profile, columns=COLUMNS)
            opened[f"{profile}_ids"] = open_dataset(folder / profile, columns=["token_ids"])
        (folder / "write").mkdir()
        found = {
            "machine": machine(),
            "rows": options.rows,
            "tokens per row": options.length,
            "bytes per token": size,
            "random row, us": random_rows(rows, opened, options.repeats),
            "shuffled epoch, Mtok/s": epoch(rows, opened, options.repeats),
            "write, MB/s": writing(rows, folder / "write", options.repeats),
            "verify, GB/s": verifying(folder / "fast", options.repeats),
            "resume in 10^7 rows": resuming(10_000_000),
            "not measured": missing,
        }
    text = json.dumps(found, indent=1, ensure_ascii=False)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
