"""tracemask: agent rollouts in, provably right training data and gradients out. Imports nothing before it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracemask.core.lazy import names

if TYPE_CHECKING:
    from tracemask import loss, train
    from tracemask.api import open_dataset
    from tracemask.check.runner import check_dataset
    from tracemask.recipe import Recipe
    from tracemask.render.renderer import Renderer
    from tracemask.trace import Trace, read_traces
    from tracemask.trace.recorder import Recorder
    from tracemask.train.batches import prepare

__version__ = "0.1.0"

_HOME = {
    "read_traces": "tracemask.trace",
    "Trace": "tracemask.trace",
    "Recorder": "tracemask.trace.recorder",
    "Renderer": "tracemask.render.renderer",
    "Recipe": "tracemask.recipe",
    "open_dataset": "tracemask.api",
    "check_dataset": "tracemask.check.runner",
    "prepare": "tracemask.train.batches",
    "train": "tracemask.train",
    "loss": "tracemask.loss",
}

__all__ = [
    "Recipe",
    "Recorder",
    "Renderer",
    "Trace",
    "check_dataset",
    "loss",
    "open_dataset",
    "prepare",
    "read_traces",
    "train",
]

__getattr__ = names(__name__, _HOME)
