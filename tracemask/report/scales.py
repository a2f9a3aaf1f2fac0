"""What one token of weight 1 counts in each row under each normalizer, as if the dataset were one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tracemask.recipe import Recipe
from tracemask.recipe.component import Normalizer
from tracemask.recipe.normalize import NORMALIZERS, Tally
from tracemask.recipe.rollouts import gather
from tracemask.store.row import Row

if TYPE_CHECKING:
    from tracemask.store.reader import Dataset


def scales(dataset: Dataset, weigh: Callable[[Row], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """{normalizer: float64[rows]}: 1 / Z of each row, 0 where nothing is counted. Rows of one trace are one rollout;
    groups are a recipe's by default: group_id, else task_id.

    The constant normalizer's L_max is the longest rollout's count of tokens in the loss, and its name says so.
    """
    keys = gather(Recipe.load("sft"), dataset.scalars(["trace_id", "group_id", "task_id"]), rows=len(dataset))
    rollout, group = keys.of_row.tolist(), keys.group[keys.of_row].tolist()
    tally = Tally()
    for row in dataset:
        mask = np.zeros(len(row), bool)
        for stream in weigh(row).values():
            mask |= stream != 0
        count = int(mask.sum())
        tally.tokens += count
        tally.of_rollout[rollout[row.index]] = tally.of_rollout.get(rollout[row.index], 0) + count
        tally.of_group[group[row.index]] = tally.of_group.get(group[row.index], 0) + count
    tally.rollouts, tally.groups = len(tally.of_rollout), len(tally.of_group)
    tally.nonempty = sum(count > 0 for count in tally.of_rollout.values())
    longest = max(tally.of_rollout.values(), default=1) or 1
    out = {}
    for name in NORMALIZERS:
        spec = Normalizer.model_validate({"name": name, "length": longest if name == "constant" else None})
        z = [NORMALIZERS[name](tally, spec, rollout[i], group[i]) for i in range(len(dataset))]
        out[f"constant (L_max {longest})" if name == "constant" else name] = np.array([1 / n if n else 0.0 for n in z])
    return out
