"""tracemask: agent rollouts in, provably right training data and gradients out. Imports nothing before it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracemask import loss, train
    from tracemask.api import check_dataset, open_dataset, prepare
    from tracemask.recipe import Recipe
    from tracemask.render.renderer import Renderer
    from tracemask.trace import Trace, read_traces
    from tracemask.trace.recorder import Recorder

__version__ = "0.1.0"

_HOME = {
    "read_traces": "tracemask.trace",
    "Trace": "tracemask.trace",
    "Recorder": "tracemask.trace.recorder",
    "Renderer": "tracemask.render.renderer",
    "Recipe": "tracemask.recipe",
    "open_dataset": "tracemask.api",
    "check_dataset": "tracemask.api",
    "prepare": "tracemask.api",
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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tracemask' has no attribute {name!r}")
    home = import_module(_HOME[name])
    return home if _HOME[name] == f"tracemask.{name}" else getattr(home, name)
