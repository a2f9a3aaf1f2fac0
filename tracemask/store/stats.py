"""What a dataset holds: tokens by author, role and part, lengths, groups, rewards, fidelity, drift. Knows no weight."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tracemask.core.vocab import Author, Code, Part, Role
from tracemask.store.reader import Dataset
from tracemask.store.shard import OpenShard
from tracemask.store.stream import group_rows

_TABLES: dict[str, type[Code]] = {"author": Author, "role": Role, "part": Part}
_BINS = 12
MASKS = ("sampled", "mask", "labels")


@dataclass(slots=True)
class Spread:
    """A few numbers about many; None where there is none."""

    n: int
    mean: float | None = None
    std: float | None = None
    min: float | None = None
    p50: float | None = None
    p90: float | None = None
    max: float | None = None

    @classmethod
    def of(cls, values: list[float] | np.ndarray) -> Spread:
        """The spread of finite `values`; std is that of the population."""
        data = np.asarray(values, dtype=np.float64)
        if len(data) == 0:
            return cls(0)
        low, mid, high, top = np.quantile(data, [0, 0.5, 0.9, 1]).tolist()
        return cls(len(data), float(data.mean()), float(data.std()), low, mid, high, top)


@dataclass(slots=True)
class Groups:
    """Rollouts by group. zero_spread: groups of several rollouts whose rewards are all equal."""

    groups: int
    sizes: Spread
    singletons: int
    zero_spread: int
    split_over_shards: int


@dataclass(slots=True)
class Stats:
    """What `tracemask stats` says. tokens: per column, label → count. histogram: (from, to, rows), half-open."""

    kind: str
    rows: int
    traces: int | None
    tokens: int
    trained: int | None
    trained_by: str | None
    by: dict[str, dict[str, int]] = field(default_factory=dict)
    lengths: Spread = field(default_factory=lambda: Spread(0))
    histogram: list[tuple[int, int, int]] = field(default_factory=list)
    groups: Groups | None = None
    reward: Spread | None = None
    reward_missing: int | None = None
    fidelity: dict[str, int] = field(default_factory=dict)
    drift: dict[str, int] = field(default_factory=dict)
    truncated: int | None = None
    approximate: int | None = None
    forked: int | None = None
    columns: tuple[str, ...] = ()
    metadata: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A plain dict for JSON."""
        return asdict(self)


def stats(dataset: Dataset) -> Stats:
    """Reads the dataset once. What a foreign dataset lacks is None or empty, never zero."""
    by: dict[str, Counter[str]] = {name: Counter() for name in _TABLES if name in dataset.token_columns}
    trained_by = next((name for name in MASKS if name in dataset.token_columns), None)
    lengths: list[int] = []
    trained = 0
    for source in dataset.sources:
        if isinstance(source, OpenShard):
            trained += _whole_columns(source, by, lengths)
        else:
            for i in range(source.rows):
                columns = source.row(i, index=i).columns
                lengths.append(len(columns["token_ids"]))
                if trained_by in columns:
                    values = columns[trained_by]
                    trained += int(np.count_nonzero(values != -100 if trained_by == "labels" else values))
                _count(by, columns)
    out = Stats(dataset.kind, len(dataset), None, sum(lengths), trained if trained_by else None, trained_by)
    out.by = {name: dict(counter.most_common()) for name, counter in by.items()}
    out.lengths, out.histogram = Spread.of(np.array(lengths)), _histogram(lengths)
    out.columns, out.metadata = dataset.token_columns, {k: v for k, v in dataset.metadata.items() if k != "enums"}
    _scalar_part(dataset, out)
    return out


def _whole_columns(shard: OpenShard, by: dict[str, Counter[str]], lengths: list[int]) -> int:
    trained = 0
    for batch in shard.batches():
        ids = batch.values("token_ids")
        lengths += np.diff(np.asarray(ids.offsets)).tolist()
        _count(by, {name: batch.values(name).all() for name in by})
        if "sampled" in shard.token_columns:
            trained += int(np.count_nonzero(batch.values("sampled").all()))
    return trained


def _count(by: dict[str, Counter[str]], columns: dict[str, np.ndarray]) -> None:
    for name, counter in by.items():
        if name in columns:
            for code, count in enumerate(np.bincount(columns[name]).tolist()):
                if count:
                    labels = _TABLES[name].labels()
                    counter[labels[code] if code < len(labels) else str(code)] += count


def _histogram(lengths: list[int]) -> list[tuple[int, int, int]]:
    """Rows by length in bins that double, the last ones with content at most."""
    if not lengths:
        return []
    data = np.array(lengths)
    low = max(0, int(data.max()).bit_length() - _BINS)
    edges = [0, *(1 << k for k in range(low, int(data.max()).bit_length() + 1))]
    counts, _ = np.histogram(data, bins=edges)
    found = [(edges[k], edges[k + 1], int(n)) for k, n in enumerate(counts.tolist())]
    first = next(k for k, one in enumerate(found) if one[2])
    return found[first:]


def _scalar_part(dataset: Dataset, out: Stats) -> None:
    names = ["trace_id", "reward", "fidelity", "drifts", "truncated", "approximate", "fork_row"]
    scalars = dataset.scalars(names)
    traces = scalars.get("trace_id")
    out.traces = None if traces is None else len(set(traces))
    out.fidelity = dict(Counter(value for value in scalars.get("fidelity", []) if value is not None).most_common())
    causes = Counter(one["cause"] for drifts in scalars.get("drifts", []) for one in drifts or ())
    out.drift = dict(causes.most_common())
    for name, attribute in (("truncated", "truncated"), ("approximate", "approximate")):
        if name in scalars:
            setattr(out, attribute, sum(bool(value) for value in scalars[name]))
    if "fork_row" in scalars:
        out.forked = sum(value is not None for value in scalars["fork_row"])
    rewards = _by_rollout(scalars.get("reward"), traces)
    if rewards is not None:
        given = [float(value) for value in rewards.values() if value is not None]
        out.reward, out.reward_missing = Spread.of(given), len(rewards) - len(given)
    if "group_id" in dataset.scalar_names:
        out.groups = _groups(dataset, scalars.get("reward"), traces)


def _by_rollout(values: list[Any] | None, traces: list[Any] | None) -> dict[Any, Any] | None:
    """One value a rollout: the rows of a trace share it."""
    if values is None or not all(value is None or isinstance(value, int | float) for value in values):
        return None
    keys = list(range(len(values))) if traces is None else traces
    return dict(zip(keys, values, strict=True))


def _groups(dataset: Dataset, rewards: list[Any] | None, traces: list[Any] | None) -> Groups:
    groups, rollouts = group_rows(dataset)
    starts = np.cumsum([0, *(shard.rows for shard in dataset.shards)])
    zero = split = 0
    for key, rows in groups.items():
        found = {rewards[i] for i in rows} if rewards is not None else {None}
        zero += rollouts[key] > 1 and len(found) == 1 and None not in found
        shards = np.searchsorted(starts, [rows[0], rows[-1]], side="right")
        split += bool(shards[0] != shards[1])
    sizes = list(rollouts.values())
    return Groups(len(groups), Spread.of(np.array(sizes)), sum(size == 1 for size in sizes), zero, split)
