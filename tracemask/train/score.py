"""Log-probs of stored tokens under a model, written into new shards. Knows no recipe: facts in, facts out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tracemask.core.fingerprint import file_sha256, fingerprint
from tracemask.recipe.keys import name_of
from tracemask.recipe.select import sampled_tokens
from tracemask.recipe.step import LaidRow
from tracemask.store.row import Row
from tracemask.train.batching import selected, work_of
from tracemask.train.config import Packing
from tracemask.train.model import load, probe, text_config
from tracemask.train.plan import Rollout, fill, grow
from tracemask.train.step import PolicyStep, read_logprobs
from tracemask.train.vocabulary import must_have_vocabulary, must_know


class As(str, Enum):
    """Which column the log-probs become."""

    REF = "ref"  # ref_logprob: the reference policy
    OLD = "old"  # old_logprob: the proximal policy
    SCORE = "score"  # score_logprob: to compare with the sampler's


class Which(str, Enum):
    """Which tokens are scored; the rest, and every row's first token, are NaN."""

    SAMPLED = "sampled"
    ALL = "all"


@dataclass(slots=True)
class Scored:
    """What a run scored; of one that went on, what it did itself.

    mean_gap, max_gap: |log-prob − the sampler's| in nats over the `compared` tokens that have both (NaN: none has).
    """

    out: str
    column: str
    rows: int = 0
    tokens: int = 0
    compared: int = 0
    mean_gap: float = float("nan")
    max_gap: float = float("nan")

    def add(self, values: np.ndarray, sampler: np.ndarray | None) -> None:
        """Count one row: its log-probs float32[T], NaN where nothing is scored, and the sampler's."""
        self.rows += 1
        self.tokens += int(np.isfinite(values).sum())
        if sampler is None:
            return
        both = np.isfinite(values) & np.isfinite(sampler)
        gaps = np.abs(values[both] - sampler[both]).astype(np.float64)
        if len(gaps):
            before = self.mean_gap * self.compared if self.compared else 0.0
            self.compared += len(gaps)
            self.mean_gap = (before + float(gaps.sum())) / self.compared
            self.max_gap = float(np.fmax(self.max_gap, gaps.max()))

    def to_json(self) -> dict[str, Any]:
        """A plain dict; NaN becomes None."""
        return {name: None if value != value else value for name, value in asdict(self).items()}


class Scorer:
    """Log-probs row by row; rows of a group are computed together, their shared beginnings once."""

    def __init__(self, dataset: Any, model: Any, *, which: Which = Which.SAMPLED, tokens_per_batch: int = 8192) -> None:
        from tracemask.store.stream import group_rows

        self.dataset, self.which, self.budget = dataset, which, tokens_per_batch
        self.step = PolicyStep(model, None).eval()
        self.vocab = int(text_config(model.config).vocab_size)
        self.device = next(model.parameters()).device
        self.dtype = torch.float64 if next(model.parameters()).dtype == torch.float64 else torch.float32
        self.groups = list(group_rows(dataset)[0].values())
        self.home = {row: at for at, rows in enumerate(self.groups) for row in rows}
        self.ready: dict[int, np.ndarray] = {}

    def __call__(self, index: int) -> np.ndarray:
        """float32[T] of row `index`, NaN where nothing is scored."""
        if index not in self.ready:
            self._read(self.groups[self.home[index]])
        return self.ready.pop(index)

    def _read(self, rows: list[int]) -> None:
        read = {row: self.dataset.row(row) for row in rows}
        self.ready |= {row: np.empty(0, np.float32) for row, one in read.items() if not len(one)}
        laid = {row: self._laid(one) for row, one in read.items() if len(one)}
        rollouts = [Rollout(name_of(one.row), (row,), (np.asarray(one.row["token_ids"]),)) for row, one in laid.items()]
        budget = max([self.budget, *(one.tokens for one in rollouts)])
        for micro in fill(grow(rollouts, budget=budget, packing=Packing.AUTO), budget=budget):
            layout = micro.lay_out()
            members = [laid[row] for row in micro.rows]
            must_know(self.vocab, [layout.ids], (one.row for one in members))
            lp = read_logprobs(self.step, work_of(layout, members, device=self.device, dtype=self.dtype))
            values, at = lp.float().cpu().numpy(), 0
            for row, one in zip(micro.rows, members, strict=True):
                places = selected(one, len(one.row))
                out = np.full(len(one.row), np.nan, np.float32)
                out[places] = values[at : at + len(places)]
                self.ready[row], at = out, at + len(places)

    def _laid(self, row: Row) -> LaidRow:
        chosen = np.ones(len(row), bool) if self.which is Which.ALL else sampled_tokens(row).copy()
        chosen[0] = False
        stream = {"read": chosen.astype(np.float32)}
        return LaidRow(row, stream, {"read": np.ones(len(row))}, np.zeros(len(row)), row.index, 0)


def score(
    data: str | list[str],
    *,
    model: str,
    out: str,
    as_: As | str = As.SCORE,
    which: Which | str = Which.SAMPLED,
    tokens_per_batch: int = 8192,
    dtype: str = "float32",
    force: bool = False,
    observer: Any = None,
) -> Scored:
    """Write `data` again at `out` with the log-probs of `model` as a column; an interrupted run goes on where it was.

    observer: called with the number of rows done. Raises TM501 for foreign data, TM506 for a model of another
    vocabulary, TM960 for one that cannot be computed exactly.
    """
    from tracemask.store.derive import add_columns, must_be_shards
    from tracemask.store.opening import open_named

    dataset = open_named(data)
    must_be_shards(dataset)
    network = _network(model, dtype, dataset)
    scorer = Scorer(dataset, network, which=Which(which), tokens_per_batch=tokens_per_batch)
    found = Scored(out, f"{As(as_).value}_logprob")

    def columns(row: Row) -> dict[str, np.ndarray]:
        values = scorer(row.index)
        found.add(values, row.get("logprob"))
        if observer is not None:
            observer(found.rows)
        return {found.column: values}

    config = {"score": found.column, "model": _identity(model), "which": Which(which).value, "dtype": dtype}
    add_columns(dataset, out, columns, config=config, force=force)
    return found


def _network(model: str, dtype: str, dataset: Any) -> Any:
    """The model, which must know the shards' ids (TM506) and be exact over packed rows (TM960)."""
    network: Any = load(model, dtype=torch.float64 if dtype == "float64" else torch.float32)
    vocab = int(text_config(network.config).vocab_size)
    must_have_vocabulary(vocab, dataset, where=model)
    probe(network, vocab=vocab)
    return network


def _identity(model: str) -> str:
    """What names the weights: the hashes of their files, else the name given."""
    files = sorted(Path(model).glob("*.safetensors")) if Path(model).is_dir() else []
    return fingerprint(*(file_sha256(path) for path in files)) if files else model
