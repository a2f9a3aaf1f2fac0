"""Load a causal language model, refuse what cannot be trained exactly, and call it on laid-out slots. Knows no loss."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tracemask.core.errors import TrainError, UsageError
from tracemask.train.attention import Plan, install, plan_of
from tracemask.train.tree import Sharing, lay_out

EXACT_LAYERS = ("full_attention", "sliding_attention", "sparse", "dense")  # the last two name MLPs, not attention
_MIXERS = ("mamba", "rwkv", "deltanet", "gateddelta", "ssm", "recurrent", "xlstm", "shortconv", "linearattention")
_ROTARY = ("dynamic", "longrope")  # frequencies depend on the longest position of the batch


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """What lies between the last hidden state and the logits besides the head's matrix."""

    scale: float = 1.0
    softcap: float | None = None


def text_config(config: Any) -> Any:
    """The language part of a configuration."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def refuse_config(config: Any) -> None:
    """Raise TM960 naming the layer type, for anything but full and sliding-window causal attention."""
    config = text_config(config)
    kind = getattr(config, "model_type", "?")
    types = [*(getattr(config, "layer_types", None) or []), *(getattr(config, "layers_block_type", None) or [])]
    bad = sorted({str(name) for name in types} - set(EXACT_LAYERS))
    if bad:
        _refuse(kind, f"layers of type {', '.join(bad)}", "they leak across packed rows and ignore tree masks")
    if getattr(config, "is_encoder_decoder", False):
        _refuse(kind, "an encoder", "only causal models are trained")
    if getattr(config, "is_causal", True) is False or getattr(config, "use_bidirectional_attention", None):
        _refuse(kind, "bidirectional attention", "only causal models are trained")
    if getattr(config, "attn_logit_softcapping", None) is not None:
        _refuse(kind, "attention soft-capping", "no exact segment attention computes it")
    if getattr(config, "attention_dropout", 0.0):
        _refuse(kind, "attention dropout", "set attention_dropout to 0 in the model's config.json")
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [one for one in rope.values() if isinstance(one, dict)]
    rotary = {str(one.get("rope_type", "default")) for one in [*nested, rope]} & set(_ROTARY)
    if rotary:
        _refuse(kind, f"{', '.join(sorted(rotary))} rotary positions", "they depend on other rows of the batch")


def refuse_model(model: nn.Module) -> None:
    """Raise TM960 for modules that mix positions other than by attention, whatever the configuration says."""
    kind = getattr(getattr(model, "config", None), "model_type", "?")
    for name, module in model.named_modules():
        spelled = type(module).__name__.lower()
        if any(mixer in spelled for mixer in _MIXERS):
            _refuse(kind, f"layer {name} ({type(module).__name__})", "it leaks across packed rows")
    if not getattr(model, "_supports_attention_backend", False):
        _refuse(kind, "attention of its own", "transformers' attention interface is not used by this architecture")
    if model.get_output_embeddings() is None:  # type: ignore[operator]
        _refuse(kind, "no language-model head", "")


def _refuse(kind: str, what: str, why: str) -> None:
    remedy = "train a model with full or sliding-window attention"
    raise TrainError("TM960", where=f"model {kind}", what=f"it has {what}{': ' + why if why else ''}", fix=remedy)


def load(path: str, *, dtype: torch.dtype = torch.float32, attention: str = "segments") -> nn.Module:
    """The model at `path` (a folder, or a hub name already cached) with our attention, in training mode.

    Raises TM901 for a missing model, TM960 for one that cannot be trained exactly, TM903 without transformers.
    """
    transformers = _transformers()
    _folder(path)
    try:
        config = transformers.AutoConfig.from_pretrained(path)
    except (OSError, ValueError, KeyError) as error:
        raise UsageError("TM901", where=path, what=f"no model: {_first_line(error)}", fix="--model FOLDER") from error
    refuse_config(config)
    try:
        with quiet():
            model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except (OSError, ValueError) as error:
        raise UsageError("TM901", where=path, what=f"no model: {_first_line(error)}", fix="--model FOLDER") from error
    return use_attention(model, attention)


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars of transformers within: what is shown belongs to the command line."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _folder(path: str) -> None:
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if looks_local and not Path(path).exists():
        raise UsageError("TM901", where=path, what="the model folder does not exist", fix="--model FOLDER")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        from tracemask.core.errors import MissingExtra

        raise MissingExtra.named("transformers", "train") from None
    return transformers


def init_tiny(
    vocab: int, *, seed: int = 0, dtype: torch.dtype = torch.float32, attention: str = "segments"
) -> nn.Module:
    """A small random Llama (2 layers, width 64) over `vocab` ids: no files, the same weights for the same seed."""
    transformers = _transformers()
    config = transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.LlamaForCausalLM(config).to(dtype)
    return use_attention(model, attention)


def use_attention(model: Any, attention: str) -> nn.Module:
    """Switch `model` to our attention (`segments`, `dense` or `flex`) after the refusals; returns it, in train mode."""
    refuse_config(model.config)
    refuse_model(model)
    model.set_attn_implementation(install(attention))
    model.train()
    return model


def head_facts(model: nn.Module) -> HeadFacts:
    """Logit scale and soft-cap of the model's configuration (Cohere, Granite, Gemma)."""
    config = text_config(model.config)
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    return HeadFacts(scale, getattr(config, "final_logit_softcapping", None))


def hidden_states(model: Any, ids_S: Tensor, position_S: Tensor, plan: Plan) -> Tensor:
    """Last hidden states [S, H] of the laid-out slots, before the head."""
    body = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    out = body(input_ids=ids_S[None], attention_mask=None, position_ids=position_S[None], use_cache=False, plan=plan)
    return out.last_hidden_state[0]


def probe(model: nn.Module, *, vocab: int, tolerance: float | None = None) -> float:
    """Largest relative hidden difference between rows alone and the same rows packed and as a tree.

    Raises TM960 when it exceeds the dtype's tolerance: a layer looks across rows in a way that no list of types knew.
    """
    device = next(model.parameters()).device
    draw = np.random.default_rng(0).integers(0, vocab, 24)
    rows = [draw[:14], np.concatenate([draw[:6], draw[14:21]]), draw[17:]]
    was_training = model.training
    model.eval()
    found = []
    with torch.no_grad():
        alone = [_laid(model, [row], Sharing.ROWS, device)[0] for row in rows]
        for sharing in Sharing:
            for one, other in zip(alone, _laid(model, rows, sharing, device), strict=True):
                found.append((one - other).abs().max().double() / one.abs().max().double())
    model.train(was_training)
    worst = float(torch.stack(found).max())  # NaN wins, and is refused below
    limit = tolerance or (1e-4 if alone[0].dtype in (torch.float32, torch.float64) else 5e-2)
    if not worst <= limit:
        what = f"packed rows change each other's hidden states by {worst:.1e} (relative)"
        raise TrainError("TM960", where=type(model).__name__, what=what, fix="train another architecture")
    return worst


def _laid(model: nn.Module, rows: list[np.ndarray], sharing: Sharing, device: torch.device) -> list[Tensor]:
    layout = lay_out(rows, sharing=sharing)
    ids, position = (torch.from_numpy(array).to(device) for array in (layout.ids, layout.position))
    hidden = hidden_states(model, ids, position, plan_of(layout, device=device))
    return [hidden[torch.from_numpy(slots).to(device)] for slots in layout.slots]
