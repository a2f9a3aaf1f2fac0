"""Training from shards: prefix trees, many ranks, bit-equal resume. Imports torch when a name is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracemask.core.lazy import names

if TYPE_CHECKING:
    from tracemask.train.batches import prepare
    from tracemask.train.config import TrainConfig
    from tracemask.train.trainer import TrainResult, train

_HOME = {
    "TrainConfig": "tracemask.train.config",
    "TrainResult": "tracemask.train.trainer",
    "prepare": "tracemask.train.batches",
    "train": "tracemask.train.trainer",
}

__all__ = ["TrainConfig", "TrainResult", "prepare", "train"]

__getattr__ = names(__name__, _HOME)
