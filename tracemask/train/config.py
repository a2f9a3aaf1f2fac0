"""Everything a training run is told, as one TOML or as flags. Knows names and numbers; no torch, no data."""

from __future__ import annotations

import tomllib
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tracemask.core.errors import TrainError, UsageError
from tracemask.core.registry import nearest
from tracemask.store.pack import Overlong


class Packing(str, Enum):
    """How rows share a micro-batch."""

    ROWS = "rows"  # side by side
    TREE = "tree"  # shared prefixes once
    AUTO = "auto"  # a tree where it saves enough, rows elsewhere


class OldLogprobs(str, Enum):
    """Where the proximal policy's log-probs come from."""

    AUTO = "auto"  # the shard's old_logprob, else the sampler's; at the start when several updates share a batch
    SAMPLER = "sampler"
    START = "start"  # one forward pass before the batch's first update
    SHARD = "shard"


class Lora(BaseModel):
    """Low-rank adapters through peft; the reference model is then the base without them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rank: int = Field(default=16, ge=1)
    alpha: int = Field(default=32, ge=1)
    dropout: float = Field(default=0.0, ge=0.0, lt=1.0)
    targets: list[str] | Literal["all-linear"] = "all-linear"


Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class TrainConfig(BaseModel):
    """One run. Tokens are slots of a micro-batch on one rank; steps are batches of whole groups over all ranks."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    data: list[str] = Field(min_length=1, description="datasets: folders of shards, opened together")
    columns: dict[str, str] = Field(default_factory=dict, description="column names of a foreign dataset")
    model: str | None = Field(default=None, description="model folder")
    init_tiny: bool = Field(default=False, description="a small random Llama over the dataset's vocabulary instead")
    recipe: str | dict[str, Any] = Field(default="grpo", description="preset, TOML path or table")
    out: str = Field(default="runs/train", description="folder of checkpoints, metrics and the exported model")
    seed: int = Field(default=0, ge=0)

    steps: int | None = Field(default=None, ge=1, description="batches to train on; default one epoch")
    epochs: float | None = Field(default=None, gt=0)
    groups_per_step: int = Field(default=8, ge=1)
    follow: bool = Field(default=False, description="each finished dataset in the data folder is a step")
    follow_timeout: float = Field(default=600.0, gt=0, description="seconds to wait for the next dataset")
    shuffle: bool = True
    tokens_per_batch: int = Field(default=8192, ge=2, description="slots of one micro-batch")
    overlong: Overlong = Overlong.ERROR
    packing: Packing = Packing.AUTO
    attention: Literal["auto", "segments", "dense", "flex"] = "auto"

    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    gradient_checkpointing: bool = False
    parallel: Literal["auto", "ddp", "fsdp2"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    lora: Lora | None = None
    valid_vocab: int | None = Field(default=None, ge=1, description="head columns the sampler normalised over")

    lr: float = Field(default=1e-5, ge=0)
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(default=0, ge=0)
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    clip_norm: float | None = Field(default=1.0, gt=0)
    updates_per_batch: int = Field(default=1, ge=1)
    old: OldLogprobs = OldLogprobs.AUTO
    reference: str | None = Field(default=None, description="reference model folder, or 'initial' for the start")
    policy_version: int | None = Field(
        default=None, description="version of the weights at the first step; each step is one more"
    )
    max_staleness: int | None = Field(default=None, ge=0, description="in place of the recipe's off_policy limit")
    tokenizer: str | None = Field(default=None, description="for recipes that drop lines by pattern")

    save_every: int | None = Field(default=None, ge=1, description="steps between checkpoints; always one at the end")
    keep: int = Field(default=2, ge=1, description="checkpoints kept")
    resume: Literal["auto", "never", "require"] = "auto"
    export: bool = True
    export_every: int | None = Field(default=None, ge=1, description="steps between exports of the model")
    tensorboard: bool = False

    @model_validator(mode="after")
    def _agree(self) -> TrainConfig:
        if (self.model is None) == (not self.init_tiny):
            what = "not both" if self.init_tiny else "and neither is given"
            raise ValueError(f"give either model (a folder) or init_tiny (a small random one), {what}")
        if self.steps is not None and self.epochs is not None:
            raise ValueError("give steps or epochs, not both")
        if self.follow and (self.steps is None or len(self.data) != 1 or self.model is None):
            raise ValueError("follow needs steps, one data folder and a model")
        if self.follow and self.columns:
            raise ValueError("follow takes shards of ours, columns are for other tools' data")
        if self.max_staleness is not None and self.policy_version is None:
            raise ValueError("max_staleness needs policy_version, the version of the weights trained here")
        if self.updates_per_batch > 1 and self.old is OldLogprobs.SAMPLER:
            raise ValueError("several updates per batch take old log-probs at its start: old = 'start' or 'shard'")
        return self

    @classmethod
    def of(cls, values: dict[str, Any], *, where: str = "options") -> TrainConfig:
        """A checked configuration; every fault of `values` is one TM900 that names its field."""
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            faults = "; ".join(_fault(dict(one)) for one in error.errors())
            raise UsageError("TM900", where=where, what=faults, fix="see `tracemask train --help`") from None

    @classmethod
    def load(cls, path: str | Path | None = None, **changes: Any) -> TrainConfig:
        """The TOML at `path`, then `changes` on top (None leaves a field as it is)."""
        values: dict[str, Any] = {}
        if path is not None:
            file = Path(path)
            if not file.is_file():
                raise UsageError("TM901", where=str(path), what="the configuration does not exist", fix="--config FILE")
            try:
                values = tomllib.loads(file.read_text(encoding="utf-8"))
            except tomllib.TOMLDecodeError as error:
                raise TrainError("TM900", where=str(path), what=f"not TOML: {error}", fix="correct the file") from error
        values |= {key: value for key, value in changes.items() if value is not None}
        return cls.of(values, where=str(path or "options"))


def _fault(problem: dict[str, Any]) -> str:
    """One fault of a configuration: its field, and what is wrong with it."""
    path = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        near = nearest(path, TrainConfig.model_fields)
        return f"{path}: no such option{f', did you mean {near!r}?' if near else ''}"
    message = str(problem["msg"]).removeprefix("Value error, ")
    return f"{path}: {message}" if path else message
