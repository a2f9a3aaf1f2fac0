"""How a row becomes a record of another trainer: one function a form, one line in the table. Knows no file.

A form's fields have fixed Arrow types, so that files do not depend on which row comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracemask.core.errors import StoreError
from tracemask.core.registry import Table
from tracemask.store.choice import Choice
from tracemask.store.row import Row

IGNORED = -100  # the label that trainers leave out of the loss


class FileKind(Choice):
    """How records are laid down."""

    PARQUET = "parquet"
    JSONL = "jsonl"
    HF = "hf"  # a folder that datasets.load_from_disk opens


@dataclass(frozen=True, slots=True)
class InLoss:
    """What an export takes as trained. mask [T] bool; weights [T] float, or None where all are 1."""

    mask: np.ndarray
    weights: np.ndarray | None = None

    @property
    def start(self) -> int:
        """The first token in the loss, where the completion begins; T where there is none."""
        return int(np.argmax(self.mask)) if self.mask.any() else len(self.mask)


Record = Callable[[Row, InLoss], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Form:
    """record: row → fields. fields: name → Arrow spelling ("[int32]": a list); None: those of our rows."""

    kind: FileKind
    record: Record
    fields: dict[str, str] | None = None
    keeps: tuple[str, ...] = ()


def ours(row: Row, loss: InLoss) -> dict[str, Any]:
    """Every column and scalar under our names."""
    return {**row.scalars, **row.columns}


def trl(row: Row, loss: InLoss) -> dict[str, Any]:
    """TRL's SFTTrainer on tokenized data: input_ids with labels and completion_mask."""
    ids = row["token_ids"]
    return {
        "input_ids": ids,
        "labels": np.where(loss.mask, ids, IGNORED),
        "completion_mask": loss.mask,
        "attention_mask": np.ones(len(ids), dtype=np.int8),
    }


def verl(row: Row, loss: InLoss) -> dict[str, Any]:
    """verl's batch fields, unpadded: prompts, responses, response_mask, rollout_log_probs, uid."""
    at, ids, scalars = loss.start, row["token_ids"], row.scalars
    return {
        "prompts": ids[:at],
        "responses": ids[at:],
        "input_ids": ids,
        "attention_mask": np.ones(len(ids), dtype=np.int8),
        "position_ids": np.arange(len(ids)),
        "response_mask": loss.mask[at:],
        "rollout_log_probs": _logprobs(row, loss)[at:],
        "loss_weights": None if loss.weights is None else loss.weights[at:],
        "uid": _text(scalars.get("group_id")),
        "reward": scalars.get("reward"),
    }


def prime_rl(row: Row, loss: InLoss) -> dict[str, Any]:
    """prime-rl's training sample: prompt and completion ids and masks, completion log-probs, one advantage."""
    at, ids, scalars = loss.start, row["token_ids"], row.scalars
    return {
        "prompt_ids": ids[:at],
        "prompt_mask": loss.mask[:at],
        "completion_ids": ids[at:],
        "completion_mask": loss.mask[at:],
        "completion_logprobs": _logprobs(row, loss)[at:],
        "advantage": _advantage(row, loss),
        "reward": scalars.get("reward"),
        "group_id": _text(scalars.get("group_id")),
    }


def _logprobs(row: Row, loss: InLoss) -> np.ndarray:
    """The sampler's log-probs in the loss, 0 outside it. TM603 where one is missing: these forms cannot say so."""
    values = row.get("logprob")
    if values is None:
        values = np.full(len(row), np.nan, dtype=np.float32)
    missing = loss.mask & np.isnan(values)
    if missing.any():
        what = f"token {int(np.argmax(missing))} is in the loss without a log-prob"
        raise StoreError(
            "TM603", where=f"row {row.index}", what=what, fix="tracemask score, or export to trl or parquet"
        )
    return np.where(loss.mask, values, 0).astype(np.float32)


def _advantage(row: Row, loss: InLoss) -> float | None:
    values = row.get("advantage")
    chosen = np.zeros(0) if values is None else values[loss.mask]
    if values is None or (len(chosen) and np.isnan(chosen).all()):
        return row.scalars.get("advantage")
    if len(chosen) and (chosen != chosen[0]).any():
        what = "the advantage differs from token to token; prime-rl has one a sample"
        raise StoreError("TM501", where=f"row {row.index}", what=what, fix="use a recipe with one advantage a rollout")
    return float(chosen[0]) if len(chosen) else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


_TRL = {"input_ids": "[int32]", "labels": "[int32]", "completion_mask": "[int8]", "attention_mask": "[int8]"}
_VERL = {"prompts": "[int32]", "responses": "[int32]", "input_ids": "[int32]", "attention_mask": "[int8]",
         "position_ids": "[int32]", "response_mask": "[int8]", "rollout_log_probs": "[float32]",
         "loss_weights": "[float32]", "uid": "string", "reward": "float64"}  # fmt: skip
_PRIME_RL = {"prompt_ids": "[int32]", "prompt_mask": "[bool]", "completion_ids": "[int32]", "completion_mask": "[bool]",
             "completion_logprobs": "[float32]", "advantage": "float64", "reward": "float64",
             "group_id": "string"}  # fmt: skip

FORMS: Table[Form] = Table(
    "export form",
    **{
        "parquet": Form(FileKind.PARQUET, ours),
        "jsonl": Form(FileKind.JSONL, ours),
        "hf": Form(FileKind.HF, ours),
        "trl": Form(FileKind.PARQUET, trl, _TRL, keeps=("token_ids",)),
        "verl": Form(FileKind.PARQUET, verl, _VERL, keeps=("token_ids", "logprob")),
        "prime-rl": Form(FileKind.JSONL, prime_rl, _PRIME_RL, keeps=("token_ids", "logprob", "advantage")),
    },
)
