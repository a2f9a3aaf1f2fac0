"""The arrays of one micro-batch: layout for the backbone, targets for the loss. Knows no trace and no recipe.

Index t speaks of token t everywhere: log-prob, weight, advantage of a target belong to the token it predicts. The one
shift is `parent_slot`: the slot whose hidden state predicts the target. A roll is its special case; a prefix tree,
where one slot predicts several targets, needs the gather.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tracemask.core.errors import LossError

_INTEGERS = {
    "input_ids",
    "positions",
    "cu_seqlens",
    "parent",
    "exit",
    "target_id",
    "parent_slot",
    "row",
    "rollout",
    "index_in_row",
    "select",
    "group",
}


_NEEDED = {"input_ids", "target_id", "parent_slot", "row", "index_in_row", "weights", "denominator"}


@dataclass(frozen=True)
class VocabularyRows:
    """The distinct rows of logits that N targets need: one per parent slot and temperature, each with its targets.

    slot: int64 [U], hidden row. starts: U + 1 offsets (on the CPU) into the targets, which stand in row order.
    owner: int64 [N], row of each target. order: int64 [N], the target at each place, or None when already in order.
    temperature: float [U] or None.
    """

    slot: Tensor
    starts: np.ndarray
    owner: Tensor
    order: Tensor | None
    temperature: Tensor | None

    @classmethod
    def of(cls, parent_slot: np.ndarray, temperature: np.ndarray | None) -> VocabularyRows:
        """parent_slot: int64 [N]; temperature: float [N] or None. Pure numpy: no device has to be asked."""
        if temperature is None:
            slot, owner = np.unique(parent_slot, return_inverse=True)
            heat = None
        else:
            pairs = np.stack([parent_slot.astype(np.float64), temperature.astype(np.float64)], 1)
            unique, owner = np.unique(pairs, axis=0, return_inverse=True)
            slot, heat = unique[:, 0].astype(np.int64), torch.from_numpy(unique[:, 1].copy())
        owner = owner.reshape(-1)
        order = np.argsort(owner, kind="stable")
        in_order = bool((order == np.arange(len(order))).all())
        return cls(
            slot=torch.from_numpy(slot.astype(np.int64)),
            starts=np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=len(slot)))]).astype(np.int64),
            owner=torch.from_numpy(owner[order].astype(np.int64)),
            order=None if in_order else torch.from_numpy(order),
            temperature=heat,
        )

    def to(self, device: Any) -> VocabularyRows:
        """The same rows with their tensors on `device`."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "starts"}
        return replace(self, **{name: None if x is None else x.to(device) for name, x in values.items()})


@dataclass(frozen=True, kw_only=True)
class Targets:
    """N tokens that some component weighs, in row-major order. Every array is a tensor [N] on one device.

    weights, denominator: component name → float [N]; weight 0 leaves the token out of that component.
    advantages, old_logprob, sampler_logprob, ref_logprob: float [N] or None; NaN is allowed where no component looks.
    row, index_in_row: int64, which token this is. rollout: int64 in [0, rollouts); rows of one trace share it.
    names: the rollout name of each row, for messages. tokens: all tokens of the batch, selected or not.
    """

    weights: Mapping[str, Tensor]
    denominator: Mapping[str, Tensor]
    row: Tensor
    index_in_row: Tensor
    rollout: Tensor
    rollouts: int
    advantages: Tensor | None = None
    old_logprob: Tensor | None = None
    sampler_logprob: Tensor | None = None
    ref_logprob: Tensor | None = None
    names: tuple[str, ...] = ()
    tokens: int = 0

    def __len__(self) -> int:
        return int(self.row.shape[0])

    def place(self, target: int) -> str:
        """Which token a target is, for a message."""
        row = int(self.row[target])
        name = f"rollout {self.names[row]!r}" if row < len(self.names) else f"row {row}"
        return f"{name} token {int(self.index_in_row[target])}"

    def to(self, device: Any) -> Self:
        """The same batch on `device`."""
        return self._map(lambda x: x.to(device))

    def take(self, order: Tensor) -> Targets:
        """The targets in another order [N]."""
        values = {f.name: getattr(self, f.name) for f in fields(Targets)}
        return Targets(**{k: _each(v, lambda x: x.index_select(0, order)) for k, v in values.items()})

    def _map(self, change: Any) -> Self:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: _each(v, change) for k, v in values.items()})


def _each(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: change(x) for name, x in value.items()}
    return value


@dataclass(frozen=True, kw_only=True)
class Batch(Targets):
    """One micro-batch, packed or as a prefix tree. Layout arrays have length S, target arrays length N.

    input_ids, positions (depth), parent (predicting slot, −1 at a root), exit (end of its subtree): int64 [S].
    cu_seqlens: int64 [documents + 1] or None. select: int64 [N], slot of each target (any one, where slots are shared).
    target_id, parent_slot: int64 [N]. temperature: float [N] or None. group: int64 [N] or None.
    """

    input_ids: Tensor
    target_id: Tensor
    parent_slot: Tensor
    positions: Tensor | None = None
    cu_seqlens: Tensor | None = None
    parent: Tensor | None = None
    exit: Tensor | None = None
    select: Tensor | None = None
    temperature: Tensor | None = None
    group: Tensor | None = None
    rows: VocabularyRows | None = field(default=None, compare=False)

    @classmethod
    def from_numpy(cls, *, dtype: torch.dtype = torch.float32, **arrays: Any) -> Batch:
        """A batch from numpy arrays (or lists) under the field names: weights and denominators become float64, other
        floats `dtype`, integers int64.

        `rollout` defaults to `row`; ids may be any integers and are made dense here. `select` defaults to none.
        `tokens` defaults to the slots. Raises LossError TM950 for an array that is missing, unknown or of a length that
        does not fit, TM604 for a target without a parent.
        """
        lacking = sorted(_NEEDED - set(arrays))
        if lacking:
            raise LossError("TM950", what=f"the batch lacks {lacking}", fix="every target needs them")
        names = tuple(arrays.pop("names", None) or ())
        tokens = arrays.pop("tokens", None)
        known = {f.name for f in fields(cls)} - {"rollouts", "rows"}
        if set(arrays) - known:
            raise LossError(
                "TM950", what=f"unknown batch arrays {sorted(set(arrays) - known)}", fix=f"known: {sorted(known)}"
            )
        _check(arrays)
        rollout = arrays.pop("rollout", None)
        unique, dense = np.unique(arrays["row"] if rollout is None else rollout, return_inverse=True)
        heat = arrays.get("temperature")
        rows = VocabularyRows.of(
            np.asarray(arrays["parent_slot"], np.int64), None if heat is None else np.asarray(heat)
        )
        values = {name: _tensor(name, value, dtype) for name, value in arrays.items()}
        values["rollout"] = torch.from_numpy(dense.reshape(-1).astype(np.int64))
        slots = len(arrays["input_ids"])
        return cls(
            **values, rollouts=len(unique), names=names, tokens=slots if tokens is None else int(tokens), rows=rows
        )

    def to(self, device: Any) -> Batch:
        """The same batch on `device`."""
        moved = self._map(lambda x: x.to(device))
        return replace(moved, rows=None if self.rows is None else self.rows.to(device))

    def vocabulary_rows(self) -> VocabularyRows:
        """The distinct logit rows. Batch.from_numpy has them ready; else the indices travel to the CPU once."""
        if self.rows is not None:
            return self.rows
        heat = None if self.temperature is None else self.temperature.detach().cpu().numpy()
        return VocabularyRows.of(self.parent_slot.cpu().numpy(), heat).to(self.parent_slot.device)


def _tensor(name: str, value: Any, dtype: torch.dtype) -> Any:
    if value is None:
        return None
    if name in ("weights", "denominator"):  # counts and products of counts stay exact
        return {key: torch.from_numpy(np.array(x, dtype=np.float64)) for key, x in value.items()}
    if name in _INTEGERS:
        return torch.from_numpy(np.array(value, dtype=np.int64))
    return torch.from_numpy(np.array(value, dtype=np.float64)).to(dtype)


def _check(arrays: Mapping[str, Any]) -> None:
    count, slots = len(arrays["target_id"]), len(arrays["input_ids"])
    streams = {f"{kind}[{c!r}]": x for kind in ("weights", "denominator") for c, x in arrays[kind].items()}
    layout = {"input_ids", "positions", "parent", "exit"}
    for name, value in ({k: v for k, v in arrays.items() if k not in ("weights", "denominator")} | streams).items():
        expected = slots if name in layout else count
        if value is not None and name != "cu_seqlens" and len(value) != expected:
            raise LossError(
                "TM950", what=f"{name} has {len(value)} entries, expected {expected}", fix="align it with the targets"
            )
    heat = arrays.get("temperature")
    cold = [] if heat is None else np.flatnonzero(~(np.asarray(heat) > 0) | ~np.isfinite(heat))
    if len(cold):
        where = f"row {np.asarray(arrays['row'])[cold[0]]} token {np.asarray(arrays['index_in_row'])[cold[0]]}"
        what = f"temperature {np.asarray(heat)[cold[0]]:g}: no distribution has such log-probs"
        fix = "give tokens taken greedily weight 0, or state the temperature of their log-probs"
        raise LossError("TM950", where=where, what=what, fix=fix)
    parents = np.asarray(arrays["parent_slot"])
    bad = np.flatnonzero((parents < 0) | (parents >= slots))
    if len(bad):
        where = f"row {np.asarray(arrays['row'])[bad[0]]} token {np.asarray(arrays['index_in_row'])[bad[0]]}"
        raise LossError(
            "TM604",
            where=where,
            what="the target has no slot that predicts it",
            fix="give a row's first token weight 0",
        )
