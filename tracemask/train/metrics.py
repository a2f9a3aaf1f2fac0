"""Metrics as (sum, count) pairs that add up over micro-batches and ranks, and the files they go to. Knows no model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tracemask.core.errors import MissingExtra, TrainError
from tracemask.core.whole import whole_file

Pairs = dict[str, tuple[float, float]]


def add(total: Pairs, more: Mapping[str, tuple[float, float]], *, prefix: str = "") -> Pairs:
    """`total` with `more` added in place, name by name. Names ending in `/max` keep the larger value."""
    for name, (value, count) in more.items():
        key = prefix + name
        before = total.get(key)
        if before is None:
            total[key] = (float(value), float(count))
        elif is_maximum(key):
            total[key] = (max(before[0], float(value)), 1.0)
        else:
            total[key] = (before[0] + float(value), before[1] + float(count))
    return total


def is_maximum(name: str) -> bool:
    """Maxima do not add up: they say so in their name."""
    return name.endswith(("/max", "_max"))


def means(pairs: Pairs) -> dict[str, float]:
    """The loss room's means (effective sample sizes included), in name order; a count of 0 is left out, never 0."""
    from tracemask.loss.metrics import means as of_loss

    return dict(sorted(of_loss({name: pair for name, pair in pairs.items() if pair[1]}).items()))


def json_line(record: Mapping[str, Any]) -> str:
    """One JSON line; a non-finite number becomes its name as text, since JSON has none."""

    def plain(value: Any) -> Any:
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if isinstance(value, Mapping):
            return {key: plain(one) for key, one in value.items()}
        return value

    return json.dumps(plain(record), separators=(", ", ": "), allow_nan=False)


class JsonLines:
    """metrics.jsonl of a run: appended per step, cut back to the checkpoint on resume, so no step is written twice."""

    def __init__(self, path: Path, *, after_step: int) -> None:
        kept = [line for number, line in enumerate(_lines(path), 1) if _step(line, f"{path}:{number}") <= after_step]
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write("".join(line + "\n" for line in kept).encode())
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record and flush it."""
        self._file.write(json_line(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _lines(path: Path) -> Iterable[str]:
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8", errors="replace")
    return [line for line in text.split("\n")[:-1] if line]  # a line without its end was cut by a kill


def _step(line: str, where: str) -> int:
    """The step that a line speaks of. Raises TM961 for what no run wrote."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, KeyError):
        what, fix = "no line of metrics, and the run appends to them", "remove the line, or the file"
        raise TrainError("TM961", where=where, what=what, fix=fix) from None


class TensorBoard:
    """The same numbers as TensorBoard scalars, through its own library (TM903 when it is not installed)."""

    def __init__(self, folder: Path, *, after_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MissingExtra("TM903", what="tensorboard is not installed", fix="pip install tensorboard") from None
        self._writer = SummaryWriter(str(folder), purge_step=after_step + 1)

    def write(self, record: Mapping[str, Any]) -> None:
        """One scalar for each number of the record."""
        for name, value in record.items():
            if isinstance(value, (int, float)) and name != "step":
                self._writer.add_scalar(name, value, int(record["step"]))

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()
