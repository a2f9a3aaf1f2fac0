"""Steps from a folder that a sampler keeps filling: each finished dataset in it is one step. Knows files, no model.

The trainer and the sampler share nothing but folders: shards one way, exported weights the other. Datasets are taken
in the order of their names, so a later one must sort after an earlier one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tracemask.core.errors import TrainError
from tracemask.recipe import Recipe
from tracemask.store.manifest import MANIFEST
from tracemask.store.reader import open_dataset
from tracemask.train.distributed import World
from tracemask.train.loader import Loaded, Loader, Policy

POLL = 0.1  # seconds between two looks at the folder


@dataclass(slots=True)
class Unseen:
    """Stands for a dataset that has not been sampled yet."""

    metadata: dict[str, Any]


class Follower:
    """The loader's interface over a growing folder: `step(k)` waits for dataset k and loads all of it."""

    def __init__(
        self,
        folder: str,
        recipe: Recipe,
        policy: Policy,
        *,
        steps: int,
        timeout: float,
        world: World,
        dtype: torch.dtype = torch.float32,
        token_bytes: Callable[[int], bytes] | None = None,
    ) -> None:
        self.folder, self.recipe, self.policy = Path(folder), recipe, replace(policy, groups_per_step=None)
        self.steps_per_epoch, self.timeout = steps, timeout
        self.world, self.dtype, self.token_bytes = world, dtype, token_bytes
        self.dataset = Unseen({})
        self.names: list[str] = []

    def finished(self) -> list[str]:
        """Names of the datasets whose manifest is written, in order."""
        if not self.folder.is_dir():
            return []
        return sorted(path.name for path in self.folder.iterdir() if (path / MANIFEST).is_file())

    def step(self, index: int) -> Loaded:
        """All groups of dataset `index`. Collective: rank 0 looks, the others follow."""
        name = self.world.same(self._wait(index) if self.world.first else "")
        self.names = [*self.names[:index], name]
        version = None if self.policy.policy_version is None else self.policy.policy_version + index
        loader = Loader(
            open_dataset(str(self.folder / name)),
            self.recipe,
            replace(self.policy, policy_version=version, shuffle=False),
            world=self.world,
            dtype=self.dtype,
            token_bytes=self.token_bytes,
        )
        return replace(loader.step(0), index=index)

    def _wait(self, index: int) -> str:
        deadline = time.monotonic() + self.timeout
        while len(found := self.finished()) <= index:
            if time.monotonic() > deadline:
                what = f"no dataset {index + 1} within {self.timeout:g} s; it holds {len(found)}"
                raise TrainError("TM904", where=str(self.folder), what=what, fix="start the sampler")
            time.sleep(POLL)
        if found[:index] != self.names[:index]:
            what = f"datasets are no longer those already trained on ({', '.join(self.names[:index][-3:])})"
            raise TrainError("TM961", where=str(self.folder), what=what, fix="names must sort after the earlier ones")
        return found[index]

    def state(self, done: int) -> dict[str, Any]:
        """The datasets taken so far."""
        return {"follow": True, "steps_done": done, "names": self.names[:done]}

    def resume(self, state: Mapping[str, Any]) -> int:
        """Steps done; the datasets taken must still be there under the same names (TM961)."""
        if not state.get("follow"):
            raise TrainError("TM961", where="resume", what="the checkpoint is of a run without --follow", fix="--out")
        self.names = list(state["names"])
        if self.finished()[: len(self.names)] != self.names:
            what = "the datasets already trained on are gone or renamed"
            raise TrainError("TM961", where=str(self.folder), what=what, fix="restore them, or another --out")
        return int(state["steps_done"])
