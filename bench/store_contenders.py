"""Rows for bench/store.py, and the same rows in the form of each tool that is measured beside ours."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "store"))

COLUMNS = ["token_ids", "sampled", "logprob"]  # what a loader needs of a row
PEERS = {"mds": ("streaming", "mosaicml-streaming"), "lit": ("litdata", "litdata")}  # module, package


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


def text_rows(rows: list) -> list:
    """The rows with the ids of this project's own prose and code, a tenth of the tokens sampled: what lz4 meets."""
    from tracemask.render.tokenizer import Tokenizer
    from tracemask.store.row import Row

    tokenizer = Tokenizer.load(str(ROOT / "fixtures" / "tokenizers" / "small"))
    files = sorted([*ROOT.glob("docs/howto/*.md"), *ROOT.glob("tracemask/**/*.py"), *ROOT.glob("tests/**/*.py")])
    text = "\n".join(file.read_text(encoding="utf-8") for file in files)
    ids = np.array(tokenizer.encode(text), dtype=np.int32)
    out = []
    for i, row in enumerate(rows):
        if (i + 1) * len(row) > len(ids):
            break
        sampled = row["message"] % 10 == 2
        likely = np.random.default_rng(i).random(len(row)) < 0.6
        logprob = np.where(likely, row["logprob"] / 100, row["logprob"])
        columns = {"token_ids": ids[i * len(row) : (i + 1) * len(row)], "sampled": sampled,
                   "logprob": np.where(sampled, logprob, np.nan).astype(np.float32)}  # fmt: skip
        out.append(Row(i, {**row.columns, **columns}, row.scalars))
    return out


def hugging_face(rows: list, folder: Path) -> Any:
    """The rows as a datasets folder on disk, opened again."""
    import datasets

    datasets.disable_progress_bars()
    path = str(folder / "hf")
    datasets.Dataset.from_dict({name: [row[name] for row in rows] for name in COLUMNS}).save_to_disk(path)
    return datasets.load_from_disk(path)


def mosaic(rows: list, folder: Path) -> Any:
    """The rows as a MosaicML streaming folder (raw bytes a column), opened again.

    The package imports torchvision; where no build of it fits a CPU torch, empty stand-ins of the image classes that it
    names will do: nothing of them is used here.
    """
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


def peers(rows: list, folder: Path, missing: dict[str, str]) -> dict[str, Any]:
    """The peers that can be imported, with the rows in their own form; the others and why they are not measured."""
    makers = {"mds": mosaic, "lit": lightning}
    opened: dict[str, Any] = {}
    for key, (module, package) in PEERS.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            missing[package] = f"cannot be imported: {error}"
        else:
            opened[key] = makers[key](rows, folder)
    return opened
