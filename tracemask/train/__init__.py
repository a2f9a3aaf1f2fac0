"""Training from shards: prefix trees, many ranks, bit-equal resume. Imports torch when a name is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracemask.train.config import TrainConfig
    from tracemask.train.loader import prepare
    from tracemask.train.trainer import TrainResult, train

_HOME = {
    "TrainConfig": "tracemask.train.config",
    "TrainResult": "tracemask.train.trainer",
    "prepare": "tracemask.train.loader",
    "train": "tracemask.train.trainer",
}

__all__ = ["TrainConfig", "TrainResult", "prepare", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tracemask.train' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
