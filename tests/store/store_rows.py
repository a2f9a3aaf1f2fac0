"""Rows, samples and small datasets for the tests of the store: plain values, no template and no tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tracemask.core.finding import Finding, Place
from tracemask.core.vocab import Author, Fidelity, Origin, Part, Role
from tracemask.render.sample import Drift, Fork, Sample
from tracemask.store.commit import write_dataset
from tracemask.store.reader import Dataset, open_dataset
from tracemask.store.row import Row
from tracemask.store.rows import of_sample
from tracemask.store.schema import make_metadata
from tracemask.trace.model import Reward, Source, Trace

ROOT = Path(__file__).resolve().parents[2]
ROLLOUTS = ROOT / "fixtures" / "rollouts" / "harbour.jsonl"
TOKENIZER = ROOT / "fixtures" / "tokenizers" / "small"


def sample(name: str, length: int, *, seed: int = 0, branch: int = 0, **changes: Any) -> Sample:
    """A sample of `length` tokens with every column filled and about a third of the tokens sampled."""
    rng = np.random.default_rng([seed, length, branch])
    sampled = rng.random(length) < 1 / 3
    fields: dict[str, Any] = {
        "trace_id": name,
        "branch": branch,
        "token_ids": rng.integers(0, 151_669, length, dtype=np.int32),
        "author": np.where(sampled, Author.POLICY, Author.ENVIRONMENT).astype(np.uint8),
        "role": np.where(sampled, Role.ASSISTANT, Role.TOOL).astype(np.uint8),
        "part": np.where(sampled, Part.CONTENT, Part.TOOL_OUTPUT).astype(np.uint8),
        "origin": np.full(length, Origin.CONTENT, dtype=np.uint8),
        "message": np.sort(rng.integers(-1, 5, length)).astype(np.int32),
        "sampled": sampled,
        "logprob": np.where(sampled, -rng.exponential(size=length), np.nan).astype(np.float32),
        "fidelity": Fidelity.EXACT,
    }
    return Sample(**{**fields, **changes})


def trace(name: str, **changes: Any) -> Trace:
    """A trace without messages; the store reads only its scalars."""
    return Trace(**{"id": name, "messages": [], **changes})


def rows(n: int, *, length: int = 12, groups: int = 0, seed: int = 0) -> list[Row]:
    """`n` rows of different lengths around `length`; with `groups`, in that many groups, rewarded."""
    out = []
    for i in range(n):
        name = f"t{i:04d}"
        more = {"group_id": f"g{i % groups}", "reward": float(i % 3)} if groups else {}
        out.append(
            of_sample(sample(name, max(0, length + (i * 7) % 11 - 5), seed=seed + i), trace(name, **more), index=i)
        )
    return out


def full_row(length: int = 9) -> Row:
    """A row that uses every scalar and the optional columns."""
    made = sample(
        "full",
        length,
        approximate=True,
        truncated=True,
        stop="length",
        fork=Fork(0, 3),
        drift=[Drift(2, "nfc", 4, 1), Drift(1, "bpe_split", 2, 2, where="context")],
        findings=[Finding("TM111", "a finding", Place(turn=1, token=2), data={"n": 1})],
        columns={
            "temperature": np.linspace(0, 1, length).astype(np.float32),
            "policy_version": np.repeat(np.array([-1, 7, 8]), [2, 3, length - 5]),
            "routed_experts": np.arange(length, dtype=np.int64),
        },
    )
    whole = trace(
        "full",
        task_id="task",
        group_id="group",
        attempt=2,
        reward=0.5,
        rewards={"style": Reward(score=0.25, weight=2.0, source="judge"), "answer": Reward(score=0.0)},
        advantage=-1.5,
        trainable=False,
        source=Source(format="openai", path="a/b.jsonl", line=7),
    )
    return of_sample(made, whole)


def dataset(folder: Path, made: list[Row], *, rows_per_shard: int = 4, **metadata: Any) -> Dataset:
    """The rows written to `folder` and opened again."""
    facts = {"tokenizer_sha256": "a" * 64, "vocab_size": 151_669, **metadata}
    write_dataset(str(folder), made, metadata=make_metadata(**facts), rows_per_shard=rows_per_shard)
    return open_dataset(folder)


def same(left: Row, right: Row, *, dtypes: bool = True) -> None:
    """Asserts that two rows hold the same columns and scalars, NaN equal to NaN."""
    assert set(left.columns) == set(right.columns)
    for name, values in left.columns.items():
        np.testing.assert_array_equal(values, right.columns[name], err_msg=name)
        if dtypes:
            assert values.dtype == right.columns[name].dtype, name
    assert dict(left.scalars) == dict(right.scalars)


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }
