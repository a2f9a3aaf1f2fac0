"""The ids of a dataset against those that a model knows: an id beyond them stops a GPU without a word. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from tracemask.core.errors import TrainError
from tracemask.recipe.keys import name_of
from tracemask.store.row import Row


def size_of(dataset: Any) -> int:
    """Ids of the dataset's tokenizer; for foreign data, the largest id present + 1."""
    stated = dataset.metadata.get("vocab_size")
    if stated:
        return int(stated)
    return 1 + max(int(dataset.row(i)["token_ids"].max(initial=0)) for i in range(len(dataset)))


def must_have_vocabulary(vocab: int, dataset: Any, *, where: str) -> None:
    """TrainError TM506 where the shards' tokenizer has more ids than the model."""
    stated = dataset.metadata.get("vocab_size")
    if stated and int(stated) > vocab:
        what = f"the model knows {vocab} ids, the shards' tokenizer has {stated}"
        raise TrainError("TM506", where=where, what=what, fix="take a model of the tokenizer that made the shards")


def must_know(vocab: int, ids: Iterable[np.ndarray], rows: Iterable[Row]) -> None:
    """TrainError TM506 where one of `ids`, laid out of `rows`, lies outside [0, vocab)."""
    if not any(len(one) and (int(one.min()) < 0 or int(one.max()) >= vocab) for one in ids):
        return
    for row in rows:
        token_ids = np.asarray(row["token_ids"])
        for at in np.flatnonzero((token_ids < 0) | (token_ids >= vocab))[:1]:
            what = f"token id {int(token_ids[at])}, and the model knows {vocab} ids"
            fix = "take a model of the tokenizer that made the rows"
            raise TrainError("TM506", where=f"{name_of(row)} token {int(at)}", what=what, fix=fix)
