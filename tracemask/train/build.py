"""Models of a run: the policy as one wrapped module, its LoRA adapters, and the reference policy. Knows no data."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from tracemask.core.errors import MissingExtra, TrainError
from tracemask.recipe import Recipe
from tracemask.train.attention import check_flex
from tracemask.train.config import Lora, TrainConfig
from tracemask.train.distributed import World, wrap
from tracemask.train.model import init_tiny, load, probe, text_config, use_attention
from tracemask.train.step import PolicyStep, Work, read_logprobs
from tracemask.train.vocabulary import must_have_vocabulary, size_of


@dataclass(slots=True)
class Policies:
    """model: the bare model being trained. module: PolicyStep around it, wrapped for the ranks.

    attention: its name. vocab: ids that the policy and its reference know.
    reference: a frozen, wrapped PolicyStep, or None; with LoRA the policy without its adapters serves.
    """

    model: Any
    module: nn.Module
    attention: str
    vocab: int
    reference: nn.Module | None
    adapters_off: bool

    def with_reference(self, works: list[Work]) -> list[Work]:
        """Works with ref_logprob, read here when a reference model was given. Collective."""
        if self.reference is None and not self.adapters_off:
            return works
        module = self.reference or self.module
        with self._without_adapters():
            read = [read_logprobs(module, one) for one in works]
        return [
            replace(one, batch=replace(one.batch, ref_logprob=lp.to(one.batch.weights[_any(one)].dtype)))
            for one, lp in zip(works, read, strict=True)
        ]

    @contextmanager
    def _without_adapters(self) -> Iterator[None]:
        with self.model.disable_adapter() if self.adapters_off else nullcontext():
            yield


def _any(work: Work) -> str:
    return next(iter(work.batch.weights))


def must_have_reference(works: list[Work], config: TrainConfig, loader: Any) -> None:
    """TrainError TM603 where the recipe needs a reference policy, and neither run nor shards have one. Collective."""
    if config.reference is not None or "ref" not in loader.recipe.needs:
        return
    if loader.world.largest(sum(len(one.batch) > 0 and one.batch.ref_logprob is None for one in works)):
        what = "the recipe compares with a reference policy, and the shards have no ref_logprob"
        fix = "--reference FOLDER or initial, or `tracemask score --as ref`"
        raise TrainError("TM603", where="reference", what=what, fix=fix)


def build(config: TrainConfig, loader: Any, world: World) -> Policies:
    """Load, check and wrap the policy and its reference. Collective."""
    recipe: Recipe = loader.recipe
    attention = _attention(config, world)
    model = _load(config, loader, config.model, attention)
    vocab = int(text_config(model.config).vocab_size)
    must_have_vocabulary(vocab, loader.dataset, where="--model")
    model.to(world.device)
    attention = proven(model, attention, vocab=vocab, settle=config.attention == "auto")
    if config.gradient_checkpointing:
        _checkpoint_activations(model)
    adapters_off = False
    if config.lora is not None:
        model = _with_adapters(model, config.lora)
        adapters_off = config.reference == "initial"
    parallel = _parallel(config, world)

    def wrapped(inner: PolicyStep) -> nn.Module:
        layers = layers_of(inner.model) if parallel == "fsdp2" else []
        return wrap(inner, layers, world=world, parallel=parallel, dtype=config.dtype)

    module = wrapped(_step(model, recipe, config, world, parallel))
    reference = None
    if config.reference is not None and not adapters_off:
        path = config.model if config.reference == "initial" else config.reference
        frozen = _load(config, loader, path, attention).to(world.device).requires_grad_(False)
        vocab = min(vocab, int(text_config(frozen.config).vocab_size))
        must_have_vocabulary(vocab, loader.dataset, where="--reference")
        inner = _step(frozen, recipe, config, world, parallel).eval()
        reference = wrapped(inner) if parallel == "fsdp2" else inner
    return Policies(model, module, attention, vocab, reference, adapters_off)


def _step(model: Any, recipe: Recipe, config: TrainConfig, world: World, parallel: str) -> PolicyStep:
    mixed = config.dtype == "bfloat16" and (world.size == 1 or parallel == "ddp")
    return PolicyStep(model, recipe, valid_vocab=config.valid_vocab, autocast=torch.bfloat16 if mixed else None)


def _parallel(config: TrainConfig, world: World) -> str:
    """auto: DDP on CPUs, FSDP2 on GPUs."""
    if config.parallel != "auto":
        return config.parallel
    return "fsdp2" if world.device.type == "cuda" else "ddp"


def _attention(config: TrainConfig, world: World) -> str:
    """auto: flex on a GPU that passes the check, else the run-by-run attention; named in the plan."""
    if config.attention == "flex":
        check_flex(world.device)
    if config.attention != "auto":
        return config.attention
    if world.device.type != "cuda":
        return "segments"
    try:
        check_flex(world.device)
    except TrainError:
        return "segments"  # exact everywhere; the run's result names what was used
    return "flex"


def proven(model: Any, attention: str, *, vocab: int, settle: bool) -> str:
    """The name of the attention with which `model` passes its probe; settle: `segments`, where flex lacks a feature."""
    try:
        probe(model, vocab=vocab)
        return attention
    except TrainError:
        if not settle or attention != "flex":
            raise
    use_attention(model, "segments")
    probe(model, vocab=vocab)
    return "segments"


def _load(config: TrainConfig, loader: Any, path: str | None, attention: str) -> Any:
    dtype = torch.float64 if config.dtype == "float64" else torch.float32
    if path is None:
        vocab = size_of(loader.dataset)
        return init_tiny(vocab, seed=config.seed, dtype=dtype, attention=attention)
    return load(path, dtype=dtype, attention=attention)


def _checkpoint_activations(model: Any) -> None:
    """By whichever name this transformers has."""
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})


def _with_adapters(model: Any, lora: Lora) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise MissingExtra("TM903", what="peft is not installed", fix="pip install peft") from None
    settings = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=lora.targets)
    try:
        adapted = get_peft_model(model, settings)
    except ValueError as error:
        what = f"peft: {(str(error).splitlines() or [''])[0]}"
        raise TrainError("TM900", where="lora.targets", what=what, fix="name modules of the model") from error
    if not isinstance(adapted.get_output_embeddings(), nn.Linear):
        what = "adapters on the LM head: the fused head reads its base weight alone and would leave them out"
        raise TrainError("TM960", where="lora.targets", what=what, fix="leave the head out of lora.targets")
    return adapted


def layers_of(model: Any) -> list[nn.Module]:
    """The decoder layers: the units that FSDP2 gathers one at a time."""
    body = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    for name in ("layers", "h", "blocks"):
        found = getattr(body, name, None)
        if isinstance(found, nn.ModuleList):
            return list(found)
    raise TrainError("TM960", where=type(model).__name__, what="no list of decoder layers found", fix="--parallel ddp")
