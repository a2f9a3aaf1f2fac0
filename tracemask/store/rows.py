"""A rendered sample and its trace as a row of facts, as it will stand in a shard. Knows no file."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from tracemask.core.errors import StoreError
from tracemask.render.sample import Sample
from tracemask.store.row import Row
from tracemask.store.schema import SCALARS, TOKEN_COLUMNS, cast
from tracemask.trace.model import Trace


def of_sample(sample: Sample, trace: Trace, *, index: int = 0) -> Row:
    """The row of `sample`, one branch of `trace`: equal to what a shard would give back.

    Raises StoreError TM101 where a column's length is not the number of ids, TM501 where a value does not fit.
    """
    identity = f"{sample.trace_id}/{sample.branch}"
    columns: dict[str, np.ndarray] = {}
    for name in TOKEN_COLUMNS:
        columns[name] = cast(name, np.asarray(getattr(sample, name)), where=identity)
    for name, values in sorted(sample.columns.items()):
        if name in TOKEN_COLUMNS or (name in SCALARS and name != "reward"):  # per-token rewards: in memory only
            what = f"column {name!r} of the engine has the name of a field that every row has"
            raise StoreError("TM501", where=identity, what=what, fix="rename it where it is recorded")
        columns[name] = cast(name, np.asarray(values), where=identity)
    check_lengths(columns, where=identity)
    return Row(index=index, columns=columns, scalars=_scalars(sample, trace, identity, columns))


def check_lengths(columns: dict[str, np.ndarray], *, where: str) -> None:
    """Raises StoreError TM101 unless every column has as many entries as `token_ids`."""
    expected = len(columns["token_ids"])
    for name, values in columns.items():
        if len(values) != expected:
            raise StoreError(
                "TM101",
                where=where,
                what=f"column {name!r} has {len(values)} entries for {expected} ids",
                fix="give one entry per token",
            )


def _scalars(sample: Sample, trace: Trace, identity: str, columns: dict[str, np.ndarray]) -> dict[str, Any]:
    source = trace.source
    rewards = {name: {"score": r.score, "weight": r.weight, "source": r.source} for name, r in trace.rewards.items()}
    return {
        "id": identity,
        "trace_id": sample.trace_id,
        "branch": sample.branch,
        "task_id": trace.task_id,
        "group_id": trace.group_id,
        "attempt": trace.attempt,
        "reward": trace.reward,
        "rewards": rewards or None,
        "advantage": trace.advantage,
        "stop": sample.stop if sample.stop is not None else trace.stop,
        "truncated": bool(sample.truncated or (trace.truncated and not sample.complete)),
        "fidelity": sample.fidelity.label,
        "approximate": sample.approximate,
        "fork_row": sample.fork.row if sample.fork else None,
        "fork_position": sample.fork.position if sample.fork else None,
        "n_tokens": len(sample),
        "n_sampled": int(np.count_nonzero(columns["sampled"])),
        "n_turns": len(np.unique(columns["message"][columns["sampled"]])),
        "drift": len(sample.drift),
        "drifts": [
            {"message": d.message, "cause": d.cause, "token": d.token, "changed": d.changed, "where": d.where}
            for d in sample.drift
        ],
        "trainable": trace.trainable,
        "source": {"format": source.format, "path": source.path, "line": source.line} if source else None,
        "findings": [json.dumps(finding.to_json(), sort_keys=True) for finding in sample.findings],
    }
