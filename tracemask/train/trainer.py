"""The training loop: model, optimizer, checkpoints and metrics around the loader's steps. Decides no weight.

A step is a batch of whole groups; its denominators are global, so any number of ranks and any split into micro-batches
gives the same gradient. Killed anywhere, the same command continues bit for bit from the last checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tracemask.core.errors import TrainError
from tracemask.core.finding import Finding
from tracemask.core.fingerprint import fingerprint
from tracemask.recipe import Recipe
from tracemask.train import checkpoint, schedule
from tracemask.train.build import Policies, build, must_have_reference
from tracemask.train.config import TrainConfig
from tracemask.train.distributed import World, clip, launched
from tracemask.train.dry_run import Plan, plan_run
from tracemask.train.feed import loader_of, steps_of
from tracemask.train.loader import Loaded
from tracemask.train.memory import shape_of
from tracemask.train.metrics import JsonLines, TensorBoard, means
from tracemask.train.model import must_be_there
from tracemask.train.step import Work
from tracemask.train.update import accumulate, padded, with_old
from tracemask.train.vocabulary import must_have_vocabulary


@dataclass(frozen=True, slots=True)
class StepReport:
    """One finished step: its 1-based number of `of`, the numbers of its metrics line, and what was found."""

    step: int
    of: int
    metrics: dict[str, float]
    findings: list[Finding]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """What a run left behind. steps: of the whole run, `taken` of them by this call (0: they were all done before).

    metrics: of the last step taken.
    """

    steps: int
    taken: int
    seconds: float
    metrics_file: str
    checkpoint: str | None
    exported: str | None
    attention: str
    metrics: dict[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """A plain dict."""
        return {**asdict(self), "findings": [one.to_json() for one in self.findings]}


Observer = Callable[[StepReport], None]


def train(config: TrainConfig | dict[str, Any], *, observer: Observer | None = None) -> TrainResult:
    """Train as configured; resumes by itself. Under torch.distributed.run every rank calls it alike.

    observer: called on rank 0 after each step. Raises TrainError (TM960 unsupported model, TM961 checkpoint, TM962
    non-finite gradient), RecipeError and LossError as the data deserve.
    """
    settings = config if isinstance(config, TrainConfig) else TrainConfig.of(config)
    with launched(settings.device) as world:
        return _Run(settings, world).go(observer)


def dry_run(config: TrainConfig | dict[str, Any]) -> Plan:
    """The plan of a run, without loading weights: rows, trees, tokens saved, steps, denominators, memory estimate."""
    settings = config if isinstance(config, TrainConfig) else TrainConfig.of(config)
    if settings.follow:
        raise TrainError("TM900", where="--dry-run", what="a folder that fills has no plan", fix="drop --follow")
    for path in (settings.model, settings.reference):
        if path is not None and path != "initial":
            must_be_there(path)
    loader, shape = loader_of(settings, World()), shape_of(settings.model)
    if shape is not None:
        must_have_vocabulary(shape.vocab, loader.dataset, where="--model")
    return plan_run(settings, loader, vocab=None if shape is None else shape.vocab)


class _Run:
    """State of one run on one rank."""

    def __init__(self, config: TrainConfig, world: World) -> None:
        self.config, self.world = config, world
        self.out = Path(config.out)
        self.loader = loader_of(config, world)
        self.recipe: Recipe = self.loader.recipe
        self.total = steps_of(config, self.loader)
        torch.manual_seed(config.seed)
        self.policies: Policies = build(config, self.loader, world)
        self.module: nn.Module = self.policies.module
        self.parameters = [one for one in self.module.parameters() if one.requires_grad]
        self.optimizer = _optimizer(config, self.module)
        torch.manual_seed(config.seed * world.size + world.rank)
        self.findings: dict[str, Finding] = {}
        self.steps_done = 0

    def go(self, observer: Observer | None) -> TrainResult:
        """Resume, train, export."""
        started = time.monotonic()
        done = self.steps_done = self._resume()
        saved = checkpoint.complete(self.out / "checkpoints")
        path = saved[-1][1] if saved else None
        values: dict[str, float] = {}
        with self._metric_files(after_step=done) as files:
            for index in range(done, self.total):
                loaded, values = self._step(index)
                self.steps_done = index + 1
                for file in files:
                    file.write({"step": index + 1, **values})
                if (index + 1) % (self.config.save_every or self.total) == 0 or index + 1 == self.total:
                    path = self._save(index + 1)
                if self.config.export_every is not None and (index + 1) % self.config.export_every == 0:
                    self._export()
                if observer is not None and self.world.first:
                    observer(StepReport(index + 1, self.total, values, loaded.findings))
        exported = self._export() if self.config.export else None
        return TrainResult(
            steps=self.steps_done,
            taken=self.steps_done - done,
            seconds=time.monotonic() - started,
            metrics_file=str(self.out / "metrics.jsonl"),
            checkpoint=None if path is None else str(path),
            exported=exported,
            attention=self.policies.attention,
            metrics=values,
            findings=list(self.findings.values()),
        )

    @contextmanager
    def _metric_files(self, *, after_step: int) -> Iterator[list[JsonLines | TensorBoard]]:
        """The files that every step's numbers go to, on rank 0; closed whatever happens."""
        files: list[JsonLines | TensorBoard] = []
        with ExitStack() as stack:
            if self.world.first:
                files.append(JsonLines(self.out / "metrics.jsonl", after_step=after_step))
                stack.callback(files[-1].close)
                if self.config.tensorboard:
                    files.append(TensorBoard(self.out / "tensorboard", after_step=after_step))
                    stack.callback(files[-1].close)
            yield files

    def _step(self, index: int) -> tuple[Loaded, dict[str, float]]:
        """Load, read what must be read before the first update, update, and the step's metrics."""
        started = time.monotonic()
        loaded = self.loader.step(index)
        loaded.must_be_known(self.policies.vocab)
        for finding in loaded.findings:
            self.findings.setdefault(f"{finding.code} {finding.message}", finding)
        works = padded(self.loader, loaded)
        values: dict[str, float] = dict(loaded.facts)
        if any(loaded.counts.values()):
            must_have_reference(works, self.config, self.loader)
            works = self.policies.with_reference(works)
            works, values["old_at_start"] = with_old(self.module, works, self.config, self.loader)
            for update in range(self.config.updates_per_batch):
                values |= self._update(works, index * self.config.updates_per_batch + update)
        else:
            values |= {"grad_norm": 0.0, "lr": 0.0}
        seconds = time.monotonic() - started
        values |= {f"selected/{name}": float(n) for name, n in loaded.counts.items()}
        values |= {
            "micro_batches": float(len(works)),
            "seconds": seconds,
            "tokens_per_second": loaded.facts["tokens"] / seconds,
        }
        return loaded, values

    def _update(self, works: list[Work], update: int) -> dict[str, float]:
        """One optimizer step over all micro-batches; the metrics of this pass."""
        self.module.train()
        rate = self._rate(update)
        pairs = accumulate(self.module, works, self.world)
        norm = clip(self.parameters, self.config.clip_norm)
        if not math.isfinite(norm):
            raise TrainError(
                "TM962",
                where=f"update {update + 1}",
                what=f"the gradient's norm is {norm}",
                fix="lower the learning rate; the last checkpoint is intact",
            )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        everywhere = self.world.add_pairs(pairs)
        losses = {name: value for name, (value, _) in everywhere.items() if name.startswith("loss/")}
        return {**losses, **means(everywhere), "grad_norm": norm, "lr": rate}

    def _rate(self, update: int) -> float:
        config = self.config
        rate = config.lr * schedule.factor(
            config.schedule,
            update,
            total=self.total * config.updates_per_batch,
            warmup=config.warmup_steps,
            floor=config.min_lr_ratio,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _identity(self) -> str:
        return fingerprint(self.recipe.model_dump(mode="json"))

    def _save(self, done: int) -> Path:
        state = {"loader": self.loader.state(done), "recipe": self._identity(), "config": _dump(self.config)}
        return checkpoint.save(
            self.out / "checkpoints",
            step=done,
            module=self.module,
            optimizer=self.optimizer,
            state=state,
            world=self.world,
            keep=self.config.keep,
        )

    def _resume(self) -> int:
        """Steps already done; fills model and optimizer from the newest whole checkpoint."""
        found = self.world.same([str(path) for _, path in checkpoint.complete(self.out / "checkpoints")])
        how = self.config.resume
        if found and how == "never":
            what = "the run folder already holds checkpoints"
            raise TrainError("TM961", where=str(self.out), what=what, fix="--resume auto, or another --out")
        if not found and how == "require":
            raise TrainError("TM961", where=str(self.out), what="no checkpoint to resume", fix="--resume auto")
        if not found:
            return 0
        path = Path(found[-1])
        state = checkpoint.state_of(path)
        done = self.loader.resume(state["loader"])
        if state["recipe"] != self._identity():
            what = "the checkpoint was made with another recipe"
            raise TrainError("TM961", where=str(path), what=what, fix="use the same recipe, or another --out")
        checkpoint.load(path, module=self.module, optimizer=self.optimizer, world=self.world)
        return done

    def _export(self) -> str:
        folder = self.out / "model"
        checkpoint.export(
            folder,
            module=self.module,
            model=self.policies.model,
            source=self.config.model,
            step=self.steps_done,
            world=self.world,
        )
        return str(folder)


def _dump(config: TrainConfig) -> dict[str, Any]:
    return config.model_dump(mode="json")


def _optimizer(config: TrainConfig, module: nn.Module) -> torch.optim.Optimizer:
    """AdamW; matrices decay, vectors do not."""
    trained = [one for one in module.parameters() if one.requires_grad]
    groups = [
        {"params": [one for one in trained if one.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [one for one in trained if one.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=True
    )
