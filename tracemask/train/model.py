"""Load a causal language model, refuse what cannot be trained exactly, and call it on laid-out slots. Knows no loss."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from tracemask.core.errors import MissingExtra, TrainError, UsageError
from tracemask.loss.lm_head.spec import Logits
from tracemask.train.attention import Plan, install, plan_of
from tracemask.train.tree import Sharing, lay_out

EXACT_LAYERS = ("full_attention", "sliding_attention", "sparse", "dense")  # the last two name MLPs, not attention
_MIXERS = re.compile(r"(?i:mamba|rwkv|deltanet|recurrent|xlstm|shortconv|linearattention)|SSM")  # not GptOssModel
# Families whose log-probs and gradients are tested against transformers' own (tests/train/test_train_families.py).
TRIED = (
    "llama", "mistral", "ministral3", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma2",
    "gemma3_text", "phi", "phi3", "olmo", "olmo2", "olmo3", "olmoe", "granite", "granitemoe", "cohere", "cohere2",
    "glm", "glm4", "glm4_moe", "deepseek_v2", "deepseek_v3", "gpt_oss", "smollm3", "starcoder2", "ernie4_5",
    "hunyuan_v1_dense", "exaone4", "apertus", "gpt_neox",
)  # fmt: skip
_ROTARY = ("dynamic", "longrope")  # frequencies depend on the longest position of the batch


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
    noise = noise_of(config)
    if "attention_dropout" in noise or "layerdrop" in noise:
        _refuse_noise(kind, noise)
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [one for one in rope.values() if isinstance(one, dict)]
    rotary = {str(one.get("rope_type", "default")) for one in [*nested, rope]} & set(_ROTARY)
    if rotary:
        _refuse(kind, f"{', '.join(sorted(rotary))} rotary positions", "they depend on other rows of the batch")


def refuse_model(model: nn.Module) -> None:
    """Raise TM960 for modules that mix positions other than by attention, whatever the configuration says."""
    kind = getattr(getattr(model, "config", None), "model_type", "?")
    for name, module in model.named_modules():
        if _MIXERS.search(type(module).__name__):
            _refuse(kind, f"layer {name} ({type(module).__name__})", "it leaks across packed rows")
    if not getattr(model, "_supports_attention_backend", False):
        _refuse(kind, "attention of its own", "transformers' attention interface is not used by this architecture")
    if model.get_output_embeddings() is None:  # type: ignore[operator]
        _refuse(kind, "no language-model head", "")


def _refuse(kind: str, what: str, why: str) -> NoReturn:
    remedy = f"train a model with full or sliding-window attention, for example {', '.join(TRIED)}"
    raise TrainError("TM960", where=f"model {kind}", what=f"it has {what}{': ' + why if why else ''}", fix=remedy)


def noise_of(config: Any) -> list[str]:
    """Names of the configuration's dropouts and jitters that are not 0."""
    values = text_config(config).to_dict().items()
    return sorted(
        name
        for name, value in values
        if ("drop" in name or "jitter" in name) and isinstance(value, float) and value and "classifier" not in name
    )


def _refuse_noise(kind: str, names: list[str]) -> NoReturn:
    what = "it draws random numbers in training (dropout or jitter): prefixes would not be shared, ratios not be 1"
    fix = f"set {', '.join(names) or 'its dropouts'} to 0 in the model's config.json"
    raise TrainError("TM960", where=f"model {kind}", what=what, fix=fix)


def load(path: str, *, dtype: torch.dtype = torch.float32, attention: str = "segments") -> nn.Module:
    """The model at `path` with our attention, in training mode. path: a folder, or a hub name already cached.

    No network is asked.
    Raises TM901 for a missing model, TM960 for one that cannot be trained exactly, TM903 without transformers.
    """
    transformers = _transformers()
    must_be_there(path)
    with _reading(path):
        config = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    refuse_config(config)
    with _reading(path), quiet():
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True)
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


@contextmanager
def _reading(path: str) -> Iterator[None]:
    """TM901 for a model that cannot be read."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        here = Path(path).is_dir()
        what = f"no model: {_first_line(error)}" if here else "neither a folder nor a model in the hub's local cache"
        fix = "--model FOLDER, with config.json and weights" if here else f"--model FOLDER, or hf download {path} first"
        raise UsageError("TM901", where=path, what=what, fix=fix) from error


def must_be_there(path: str) -> None:
    """TM901 for the path of a folder that does not exist; the name of a hub's model passes."""
    looks_local = path.startswith((".", "/", "~")) or path.count("/") > 1
    if looks_local and not Path(path).exists():
        raise UsageError("TM901", where=path, what="the model folder does not exist", fix="--model FOLDER")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
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
    if next(model.parameters()).dtype == torch.float64 and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the grouped product of experts has no float64
    model.set_attn_implementation(install(attention))
    model.train()
    return model


def head_facts(model: nn.Module) -> Logits:
    """How the model makes logits of its head's products: scale and soft-cap (Cohere, Granite, Gemma)."""
    config = text_config(model.config)
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    return Logits(scale, getattr(config, "final_logit_softcapping", None))


def hidden_states(model: Any, ids_S: Tensor, position_S: Tensor, plan: Plan) -> Tensor:
    """Last hidden states [S, H] of the laid-out slots, before the head."""
    body = model.get_decoder() if hasattr(model, "get_decoder") else model.base_model
    out = body(input_ids=ids_S[None], attention_mask=None, position_ids=position_S[None], use_cache=False, plan=plan)
    return out.last_hidden_state[0]


def probe(model: nn.Module, *, vocab: int, tolerance: float | None = None) -> float:
    """Largest relative difference of hidden states (rows alone, packed, as a tree, in training mode) and of logits
    (ours and transformers' own) on a few tokens.

    Raises TM960 when it exceeds the dtype's tolerance: the model does what no list of names knew. A difference that
    another draw of tokens does not show is a mixture's router at a tie of two experts.
    """
    wide = next(model.parameters()).dtype in (torch.float32, torch.float64)
    limit = tolerance or (1e-4 if wide else 5e-2)
    was_training = model.training
    found: dict[str, float] = {}
    try:
        with torch.no_grad():
            for seed in range(3):
                found = _differences(model, np.random.default_rng(seed).integers(0, vocab, 24))
                if max(found.values()) <= limit:  # False for NaN, too
                    return max(found.values())
    except (TypeError, AttributeError) as error:
        _refuse(type(model).__name__, "a body that cannot be called on laid-out rows", _first_line(error))
    finally:
        model.train(was_training)
    damaged = [name for name, one in model.named_parameters() if not bool(torch.isfinite(one).all())]
    if damaged:
        what, fix = f"{len(damaged)} parameters hold NaN or infinity, {damaged[0]} first", "take the weights anew"
        raise TrainError("TM960", where=type(model).__name__, what=what, fix=fix)
    what, worst = next((what, worst) for what, worst in found.items() if not worst <= limit)
    if what == NOISE:
        _refuse_noise(type(model).__name__, noise_of(model.config))
    fix = f"train another architecture, for example {', '.join(TRIED)}"
    raise TrainError("TM960", where=type(model).__name__, what=f"{what} by {worst:.1e} (relative)", fix=fix)


NOISE = "training mode changes hidden states"


def _differences(model: Any, draw: np.ndarray) -> dict[str, float]:
    """What might differ → its largest relative difference, for rows drawn of `draw` [24]."""
    device = next(model.parameters()).device
    rows = [draw[:14], np.concatenate([draw[:6], draw[14:21]]), draw[17:]]
    model.train()
    noisy = _laid(model, rows[:1], Sharing.ROWS, device)
    model.eval()
    alone = [_laid(model, [row], Sharing.ROWS, device)[0] for row in rows]
    together = [_laid(model, rows, sharing, device) for sharing in Sharing]
    own = _own_logits(model, rows, device)
    return {
        "packed rows change each other's hidden states": max(_worst(alone, one) for one in together),
        NOISE: _worst(alone[:1], noisy),
        "logits differ from transformers' own": _worst(own, [_logits(model, one) for one in alone]),
    }


def _worst(expected: list[Tensor], got: list[Tensor]) -> float:
    """Largest relative difference; NaN where either holds one."""
    gaps = [(a - b).abs().max().double() / a.abs().max().double() for a, b in zip(expected, got, strict=True)]
    return float(torch.stack(gaps).max())


def _own_logits(model: Any, rows: list[np.ndarray], device: torch.device) -> list[Tensor]:
    """Logits of each row by the model's own forward, with the attention that transformers would choose."""
    ours = model.config._attn_implementation
    model.set_attn_implementation("sdpa" if getattr(model, "_supports_sdpa", False) else "eager")
    try:
        return [model(torch.from_numpy(row).to(device)[None], use_cache=False).logits[0] for row in rows]
    finally:
        model.set_attn_implementation(ours)


def _logits(model: Any, hidden: Tensor) -> Tensor:
    """Logits as the loss makes them."""
    head = model.get_output_embeddings()
    raw = nn.functional.linear(hidden.to(head.weight.dtype), head.weight, head.bias)
    return head_facts(model).transform(raw)


def _laid(model: nn.Module, rows: list[np.ndarray], sharing: Sharing, device: torch.device) -> list[Tensor]:
    layout = lay_out(rows, sharing=sharing)
    ids, position = (torch.from_numpy(array).to(device) for array in (layout.ids, layout.position))
    hidden = hidden_states(model, ids, position, plan_of(layout, device=device))
    return [hidden[torch.from_numpy(slots).to(device)] for slots in layout.slots]
