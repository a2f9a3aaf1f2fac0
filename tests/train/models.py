"""Tiny random models of the architectures that the train tests compare on."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

VOCAB = 61


def tiny(
    kind: str, *, tied: bool = False, dtype: torch.dtype = torch.float64, seed: int = 0, **changes: Any
) -> nn.Module:
    """`llama`, `qwen3` or `sliding` (Qwen3 with two sliding-window layers of 5), weights large enough to matter.

    RMSNorm is replaced by torch's: Hugging Face's computes in float32 and hides everything below 1e-7.
    """
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

    common: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3 if kind == "sliding" else 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "initializer_range": 0.2,
    }
    common.update(changes)
    torch.manual_seed(seed)
    if kind == "llama":
        model: nn.Module = LlamaForCausalLM(LlamaConfig(**common))
    else:
        window = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1} if kind == "sliding" else {}
        model = Qwen3ForCausalLM(Qwen3Config(head_dim=8, **window, **common))
    return exact_norms(model.to(dtype))


def exact_norms(model: nn.Module) -> nn.Module:
    """Every RMSNorm computed in the model's own dtype."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm") and not isinstance(child, nn.RMSNorm):
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=child.weight.dtype)
                norm.weight = child.weight
                setattr(parent, name, norm)
    return model
