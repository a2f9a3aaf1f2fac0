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
    """What an export takes as trained. mask [T] bool; weights [T] float, or None where all are 1.

    component: whose weights they are; "" where the mask says what is trained.
    """

    mask: np.ndarray
    weights: np.ndarray | None = None
    component: str = ""

    @property
    def start(self) -> int:
        """The first token in the loss, where the completion begins; T where there is none."""
        return int(np.argmax(self.mask)) if self.mask.any() else len(self.mask)


Record = Callable[[Row, InLoss], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Form:
    """record: row → fields. fields: name → Arrow spelling ("[int32]": a list); None: those of our rows.

    keeps: columns that have a place, the component's own weights as "weight.*". counted: what is trained and the name
    of what says so, where it is more than the mask.
    """

    kind: FileKind
    record: Record
    fields: dict[str, str] | None = None
    keeps: tuple[str, ...] = ()
    counted: Callable[[Row, InLoss], tuple[np.ndarray, str]] | None = None


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
    """verl's batch fields, unpadded: prompts, responses, response_mask, rollout_log_probs, rm_scores, uid.

    As in verl, the reward stands at the last token of the response; weights multiply the policy's loss of a token.
    """
    at, ids, scalars = loss.start, row["token_ids"], row.scalars
    ones = np.ones(len(ids), dtype=np.int64)
    reward, advantages = scalars.get("reward"), _advantages(row, loss.mask)
    scores = None if reward is None else np.zeros(len(ids) - at, dtype=np.float32)
    if scores is not None:
        scores[-1:] = reward
    return {
        "prompts": ids[:at],
        "responses": ids[at:],
        "input_ids": ids,
        "attention_mask": ones,
        "position_ids": np.arange(len(ids)),
        "response_mask": loss.mask[at:],
        "rollout_log_probs": _logprobs(row, loss.mask)[at:],
        "rm_scores": scores,
        "advantages": None if advantages is None else advantages[at:],
        "rollout_is_weights": None if loss.weights is None else loss.weights[at:],
        "uid": _text(scalars.get("group_id")),
        "reward": reward,
    }


def prime_rl(row: Row, loss: InLoss) -> dict[str, Any]:
    """prime-rl's TrainingSample: one flat sequence, its trainable tokens and the weight streams of its components.

    Without a component every stream that the row has is written; ce weighs tokens that the mask leaves out, too.
    """
    count, mask = len(row), loss.mask
    streams = _streams(row, loss)
    ref_kl, heat = streams["ref_kl_weights"], row.get("temperature")
    credited = _credited(mask, streams)
    distilled = np.zeros(count, dtype=bool) if ref_kl is None else ref_kl != 0
    return {
        "token_ids": row["token_ids"],
        "mask": mask,
        "logprobs": _logprobs(row, credited | distilled, shown=mask),
        "temperatures": np.ones(count, np.float32) if heat is None else np.where(np.isnan(heat), 1, heat),
        "env_name": "tracemask",
        "ref_logprobs": _logprobs(row, distilled, column="ref_logprob") if distilled.any() else None,
        **streams,
        "advantages": _advantages(row, credited),
        "trace_id": _text(row.scalars.get("trace_id")),
        "branch_index": row.scalars.get("branch"),
    }


def _credited(mask: np.ndarray, streams: dict[str, np.ndarray | None]) -> np.ndarray:
    """Tokens of the policy-gradient component."""
    rl = streams["rl_weights"]
    return mask if rl is None else mask & (rl != 0)


def _in_streams(row: Row, loss: InLoss) -> tuple[np.ndarray, str]:
    """Tokens of any of prime-rl's components, and the columns that say so ("" where only the mask does)."""
    streams = _streams(row, loss)
    trained = _credited(loss.mask, streams)
    for name in ("ce_weights", "ref_kl_weights"):
        weights = streams[name]
        trained = trained if weights is None else trained | (weights != 0)
    given = [f"weight.{name}" for name in PRIME_RL_STREAMS if row.get(f"weight.{name}") is not None]
    return trained, "" if loss.component else ", ".join(given)


def _streams(row: Row, loss: InLoss) -> dict[str, np.ndarray | None]:
    """prime-rl's streams: null is weight 1 for rl and no component for the others, so a row with others has an rl."""
    if loss.component and loss.component not in PRIME_RL_STREAMS:
        given = {"rl": loss.weights}
    else:
        names = [loss.component] if loss.component else PRIME_RL_STREAMS
        given = {name: weights for name in names if (weights := row.get(f"weight.{name}")) is not None}
    if given and "rl" not in given:
        given["rl"] = np.zeros(len(row), dtype=np.float32)
    return {theirs: given.get(name) for name, theirs in PRIME_RL_STREAMS.items()}


def _logprobs(row: Row, needed: np.ndarray, *, column: str = "logprob", shown: np.ndarray | None = None) -> np.ndarray:
    """Log-probs where `needed` or `shown`, else 0. TM603 where a needed one is missing: these forms cannot say so."""
    values = row.get(column)
    if values is None:
        values = np.full(len(row), np.nan, dtype=np.float32)
    absent = np.isnan(values)
    if (missing := needed & absent).any():
        whose = "log-prob" if column == "logprob" else "reference log-prob"
        what = f"token {int(np.argmax(missing))} is in the loss without a {whose}"
        raise StoreError(
            "TM603", where=f"row {row.index}", what=what, fix="tracemask score, or export to trl or parquet"
        )
    return np.where(~absent & (needed if shown is None else needed | shown), values, 0).astype(np.float32)


def _advantages(row: Row, needed: np.ndarray) -> np.ndarray | None:
    """Advantages where `needed`, 0 elsewhere; None where there are none. TM501 where some are missing."""
    values = row.get("advantage")
    if values is None or (needed.any() and np.isnan(values[needed]).all()):
        one = row.scalars.get("advantage")
        if one is None:
            return None
        values = np.full(len(row), one, dtype=np.float32)
    if (missing := needed & np.isnan(values)).any():
        what = f"token {int(np.argmax(missing))} is in the loss without an advantage, others have one"
        raise StoreError("TM501", where=f"row {row.index}", what=what, fix="tracemask materialize gives each its own")
    return np.where(needed, values, 0).astype(np.float32)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


# Our components → prime-rl's weight streams.
PRIME_RL_STREAMS = {"rl": "rl_weights", "ce": "ce_weights", "ref_kl": "ref_kl_weights"}
_TRL = {"input_ids": "[int32]", "labels": "[int32]", "completion_mask": "[int8]", "attention_mask": "[int8]"}
_VERL = {"prompts": "[int64]", "responses": "[int64]", "input_ids": "[int64]", "attention_mask": "[int64]",
         "position_ids": "[int64]", "response_mask": "[int64]", "rollout_log_probs": "[float32]",
         "rm_scores": "[float32]", "advantages": "[float32]", "rollout_is_weights": "[float32]", "uid": "string",
         "reward": "float64"}  # fmt: skip
_PRIME_RL = {"token_ids": "[int32]", "mask": "[bool]", "logprobs": "[float32]", "temperatures": "[float32]",
             "env_name": "string", "ref_logprobs": "[float32]", **dict.fromkeys(PRIME_RL_STREAMS.values(), "[float32]"),
             "advantages": "[float32]", "trace_id": "string", "branch_index": "int32"}  # fmt: skip

_PRIME_RL_KEEPS = ("token_ids", "logprob", "advantage", "temperature", "ref_logprob", "weight.*",
                   *(f"weight.{name}" for name in PRIME_RL_STREAMS))  # fmt: skip

FORMS: Table[Form] = Table(
    "export form",
    **{
        "parquet": Form(FileKind.PARQUET, ours),
        "jsonl": Form(FileKind.JSONL, ours),
        "hf": Form(FileKind.HF, ours),
        "trl": Form(FileKind.PARQUET, trl, _TRL, keeps=("token_ids",)),
        "verl": Form(FileKind.PARQUET, verl, _VERL, keeps=("token_ids", "logprob", "advantage", "weight.*")),
        "prime-rl": Form(
            FileKind.JSONL,
            prime_rl,
            _PRIME_RL,
            keeps=_PRIME_RL_KEEPS,
            counted=_in_streams,
        ),
    },
)
