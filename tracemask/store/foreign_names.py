"""What other tools call the columns of a token dataset, and how their rows become ours. Knows no file format.

Names of TRL, axolotl, LLaMA-Factory, verl, slime, SkyRL and prime-rl. Nothing is cut, shifted or refused for its
length: the rules of check report what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracemask.core.errors import StoreError
from tracemask.store.row import Row
from tracemask.store.shard import plain

# Ours → theirs, the first that is there wins.
IDS = ("token_ids", "input_ids", "tokens", "ids")
PROMPT_IDS = ("prompt_ids", "prompts", "prompt_token_ids")
COMPLETION_IDS = ("completion_ids", "responses", "response_ids", "response_token_ids", "output_ids")
TOKEN_NAMES: dict[str, tuple[str, ...]] = {
    "labels": ("labels", "label_ids"),
    "mask": ("mask", "loss_mask", "completion_mask", "response_mask", "assistant_masks", "assistant_mask", "tool_mask"),
    "attention_mask": ("attention_mask",),
    "position_ids": ("position_ids",),
    "logprob": ("logprob", "logprobs", "completion_logprobs", "response_logprobs", "rollout_log_probs",
                "rollout_logprobs", "sampling_per_token_logps", "inference_logprobs", "log_probs"),
    "old_logprob": ("old_logprob", "old_log_probs", "old_per_token_logps", "old_logprobs"),
    "ref_logprob": ("ref_logprob", "ref_log_prob", "ref_log_probs", "ref_per_token_logps", "teacher_logprobs",
                    "ref_logprobs", "reference_logprobs", "teacher_log_probs"),
    "score_logprob": ("score_logprob",),
    "trainer_logprob": ("trainer_logprob", "trainer_logprobs"),
    "entropy": ("entropy", "entropies", "entropys"),
    "temperature": ("temperature", "temperatures", "completion_temperatures"),
    "advantage": ("advantage", "advantages"),
    "weight.rl": ("weight.rl", "rl_weights"),
    "weight.ce": ("weight.ce", "ce_weights"),
    "weight.ref_kl": ("weight.ref_kl", "ref_kl_weights"),
}  # fmt: skip
# Masks of which a token in the loss needs every one: TRL keeps what is real and what the policy wrote apart.
ALL_OF = ("completion_mask", "tool_mask", "assistant_masks", "assistant_mask")
SCALAR_NAMES: dict[str, tuple[str, ...]] = {
    "id": ("id", "row_id"),
    "group_id": ("group_id", "uid", "group_index", "problem_id", "example_id", "prompt_id"),
    "task_id": ("task_id", "data_source"),
    "reward": ("reward", "rewards", "score", "scores", "raw_reward"),
    "advantage": ("advantage", "advantages"),
    "truncated": ("truncated", "is_truncated"),
}
# Where a completion-only column is extended over its prompt, the prompt gets this.
PROMPT_FILL: dict[str, float] = {"mask": 0, "labels": -100, "attention_mask": 1}
_LENGTH = "response_length"  # slime: how many of the last ids are the reply, which the other columns are about
_PROMPT_OF = {"mask": ("prompt_mask",), "attention_mask": ("prompt_attention_mask",)}
# Fields of logs, whose ids are made by convert.
_OF_LOGS = frozenset({"messages", "conversations", "trajectory", "prompt", "completion", "input", "output", "response"})
# Spellings of `--columns` that are shorter than the column.
SHORT = {"ids": "token_ids", "tokens": "token_ids", "logprobs": "logprob", "advantages": "advantage",
         "group": "group_id", "weights": "weight"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Names:
    """Which field of a foreign file is what. ids: whole rows; None where prompt and completion are apart."""

    ids: str | None
    prompt: str | None
    completion: str | None
    tokens: dict[str, str] = field(default_factory=dict)  # ours → theirs, per token
    scalars: dict[str, str] = field(default_factory=dict)  # ours → theirs
    raw: tuple[str, ...] = ()  # other fields, kept under their own name
    masks: tuple[str, ...] = ()  # fields that take tokens out of the mask

    @property
    def token_columns(self) -> tuple[str, ...]:
        """Per-token columns of the rows, ids first."""
        mask = ("mask",) if self.ids is None and "mask" not in self.tokens else ()
        return tuple(dict.fromkeys(("token_ids", *self.tokens, *mask)))

    @property
    def scalar_names(self) -> list[str]:
        """Scalars of the rows."""
        return list(dict.fromkeys([*self.scalars, *self.raw]))

    def scalar_field(self, name: str) -> str:
        """The field that holds scalar `name`."""
        return self.scalars.get(name, name)

    def row(self, values: Mapping[str, Any], *, index: int, where: str) -> Row:
        """The row of one foreign record. TM501 where it has no ids or they are no whole numbers."""
        columns: dict[str, np.ndarray] = {}
        prompt = _numbers(values.get(self.prompt or ""), where, self.prompt)
        completion = _numbers(values.get(self.completion or ""), where, self.completion)
        ids = _numbers(values.get(self.ids), where, self.ids) if self.ids else _joined(prompt, completion)
        if ids is None or (len(ids) and ids.dtype.kind not in "iu"):
            raise StoreError("TM501", where=where, what="no whole-number token ids in this row", fix="repair the row")
        columns["token_ids"] = _narrow(ids)
        length = values.get(_LENGTH) if completion is None else len(completion)
        split = (len(ids) - length, length) if isinstance(length, int) and 0 <= length <= len(ids) else None
        for ours, theirs in self.tokens.items():
            if (found := _numbers(values.get(theirs), where, theirs)) is not None:
                columns[ours] = self._whole(ours, found, len(ids), split, values, where)
        for theirs in self.masks:
            if (found := _numbers(values.get(theirs), where, theirs)) is not None:
                found = self._whole("mask", found, len(ids), split, {}, where)
                mask = columns.get("mask", found)
                columns["mask"] = np.where(found != 0, mask, 0) if len(found) == len(mask) else found
        if self.ids is None and "mask" not in columns and completion is not None:
            columns["mask"] = np.repeat(np.array([0, 1]), [len(ids) - len(completion), len(completion)])
        scalars = {name: plain(name, values.get(self.scalar_field(name))) for name in self.scalar_names}
        return Row(index, columns, scalars)

    def _whole(
        self,
        ours: str,
        found: np.ndarray,
        total: int,
        split: tuple[int, int] | None,
        values: Mapping[str, Any],
        where: str,
    ) -> np.ndarray:
        """A known completion-only column over the whole row; any other length is left for the rules to report."""
        if ours not in TOKEN_NAMES or len(found) == total or split is None or len(found) != split[1]:
            return found
        for name in _PROMPT_OF.get(ours, ()):
            before = _numbers(values.get(name), where, name)
            if before is not None and len(before) == split[0] and not (ours == "mask" and self._attends(before)):
                return np.concatenate([before, found])
        fill = PROMPT_FILL.get(ours, np.nan)
        return np.concatenate(
            [np.full(split[0], fill, dtype=found.dtype if ours in PROMPT_FILL else np.float64), found]
        )

    def _attends(self, prompt_mask: np.ndarray) -> bool:
        """TRL's `prompt_mask` is the prompt's attention (0…01…1), prime-rl's says what is trained."""
        on = np.asarray(prompt_mask) != 0
        if not on.any() or (on[1:] < on[:-1]).any():
            return False
        return not on[0] or any("per_token_logps" in name for name in self.tokens.values())


A_LOG = "a log becomes shards by `tracemask convert LOG -t TOKENIZER -o SHARDS`; `tracemask trace LOG` shows it"


def match(lists: Iterable[str], scalars: Iterable[str], mapping: Mapping[str, str], *, where: str) -> Names:
    """The names of a file whose fields of number lists are `lists` and whose other fields are `scalars`.

    mapping: ours → theirs, before any known name. TM501 where there are no ids, TM902 where a mapped field is absent.
    """
    lists, scalars = list(lists), list(scalars)
    given = {SHORT.get(ours, ours): theirs for ours, theirs in mapping.items()}
    for ours, theirs in given.items():
        if theirs not in lists and theirs not in scalars:
            fix = f"columns here: {', '.join([*lists, *scalars])}"
            raise StoreError("TM902", where=where, what=f"no column {theirs!r} for {ours!r}", fix=fix)

    def first(names: Iterable[str], among: list[str]) -> str | None:
        return next((name for name in names if name in among), None)

    ids = given.get("token_ids") or first(IDS, lists)
    prompt, completion = first(PROMPT_IDS, lists), first(COMPLETION_IDS, lists)
    if ids is None and completion is None:
        hint = "name it: --columns ids=NAME"
        if not _OF_LOGS.isdisjoint(scalars):
            hint = A_LOG
        what = f"no column of token ids among {', '.join([*lists, *scalars]) or 'none'}"
        raise StoreError("TM501", where=where, what=what, fix=hint)
    tokens = {ours: found for ours, names in TOKEN_NAMES.items() if (found := given.get(ours) or first(names, lists))}
    tokens = {ours: theirs for ours, theirs in tokens.items() if theirs in lists and theirs != ids}
    tokens |= {ours: theirs for ours, theirs in given.items() if theirs in lists and ours not in ("token_ids", *tokens)}
    mask = tokens.get("mask") if "mask" not in given else None
    masks = tuple(name for name in ALL_OF if name in lists and name != mask) if mask in ALL_OF else ()
    apart = () if ids else (prompt, completion)  # beside whole rows they stay: check compares them with the ids
    used = {ids, *apart, *masks, *tokens.values(), *(name for names in _PROMPT_OF.values() for name in names)}
    tokens |= {name: name for name in lists if name not in used and name not in tokens}
    known = {ours: found for ours, names in SCALAR_NAMES.items() if (found := given.get(ours) or first(names, scalars))}
    known = {ours: theirs for ours, theirs in known.items() if theirs in scalars}
    return Names(ids, prompt, completion, tokens, known, tuple(name for name in scalars if name not in known), masks)


def is_token_name(name: str) -> bool:
    """Whether a field of this name holds one value a token, judged by the name alone."""
    if name in (*IDS, *PROMPT_IDS, *COMPLETION_IDS):
        return True
    return any(name in names for ours, names in TOKEN_NAMES.items() if ours != "advantage")


def is_numbers(value: Any) -> bool:
    """Whether a JSON value is a list of numbers, booleans or nulls (an empty list counts)."""
    return isinstance(value, list) and all(isinstance(item, int | float | None) for item in value[:64])


def _joined(prompt: np.ndarray | None, completion: np.ndarray | None) -> np.ndarray | None:
    parts = [part for part in (prompt, completion) if part is not None]
    return np.concatenate([part.astype(np.int64) if len(part) == 0 else part for part in parts]) if parts else None


def _numbers(value: Any, where: str, name: str | None) -> np.ndarray | None:
    """A list as an array, null elements as NaN; None where there is no list."""
    if value is None:
        return None
    if isinstance(value, np.ndarray):
        return value
    if not isinstance(value, list):
        return None
    try:
        array = np.array(value)
        if array.dtype == object:
            array = np.array([np.nan if item is None else item for item in value], dtype=np.float64)
    except (ValueError, TypeError, OverflowError):
        array = np.zeros(0, dtype=object)
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise StoreError(
            "TM501", where=where, what=f"column {name!r} is not a flat list of numbers", fix="repair the row"
        )
    return array.astype(np.int64) if len(array) == 0 else array


def _narrow(ids: np.ndarray) -> np.ndarray:
    """Ids as int32 where all fit: the form that our own rows have."""
    if ids.dtype == np.int32 or len(ids) == 0:
        return ids.astype(np.int32, copy=False)
    limits = np.iinfo(np.int32)
    return ids.astype(np.int32) if limits.min <= ids.min() and ids.max() <= limits.max else ids
