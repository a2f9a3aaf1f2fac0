"""How much memory a run takes at its peak, from the model's configuration and file headers alone. Knows no model code.

The activations' terms are counted over one decoder layer and compared, in tests, with the bytes that autograd keeps.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracemask.loss.lm_head.spec import CPU_BUFFER
from tracemask.train.config import TrainConfig

GIB = 1 << 30
RUNTIME = GIB // 4  # the libraries' own pages, once a forward pass has touched them
BAND = (0.9, 1.3)  # measured peaks over estimates: Llama shapes of 2 to 30 layers, two steps on a CPU


@dataclass(frozen=True, slots=True)
class Shape:
    """What the estimate reads of a configuration. inner: width of the MLPs that one token passes through."""

    hidden: int
    layers: int
    inner: int
    heads_width: int
    vocab: int
    parameters: int


def estimate(config: TrainConfig) -> dict[str, int]:
    """Part → bytes at the peak of one rank's step; empty where the model's folder says too little.

    On a CPU, measured peaks of resident memory lie within BAND of the sum. Families with norms on queries and keys, or
    around each block, keep up to 1.4 times the activations.
    """
    shape = shape_of(config.model)
    if shape is None:
        return {}
    size = 8 if config.dtype == "float64" else 4
    trained = shape.parameters if config.lora is None else _adapters(shape, config.lora.rank)
    copies = shape.parameters * (1 if config.lora is None and config.reference else 0)
    half = shape.parameters * 2 if config.dtype == "bfloat16" else 0  # autocast's copies during a micro-batch
    return {
        "weights": (shape.parameters + copies) * size + half,
        "gradients": trained * size,
        "optimizer": 2 * trained * size,
        "activations": activations(shape, config),
        "head": (2 if config.lora is None else 0) * shape.vocab * shape.hidden * size + CPU_BUFFER,
        "runtime": RUNTIME,
    }


def activations(shape: Shape, config: TrainConfig) -> int:
    """Bytes that autograd keeps of one full micro-batch.

    A layer keeps its input and its normed input, twice; the inputs of its products; queries, keys, values and their
    weighted sum; four arrays of the MLP. Under autocast norms stay in float32 and each product casts its own input.
    """
    h, a, i = shape.hidden, shape.heads_width, shape.inner
    size = 8 if config.dtype == "float64" else 4
    layer = 29 * h + 10 * a + 8 * i if config.dtype == "bfloat16" else size * (7 * h + 5 * a + 4 * i)
    kept = layer * shape.layers
    if config.gradient_checkpointing:
        kept = layer + size * h * shape.layers * 3 // 2
    return config.tokens_per_batch * kept


def _adapters(shape: Shape, rank: int) -> int:
    """Parameters of LoRA on every linear layer, about."""
    attention = 4 * (shape.hidden + shape.heads_width)
    return shape.layers * rank * (attention + 3 * (shape.hidden + shape.inner))


def shape_of(model: str | None) -> Shape | None:
    """The shape of the model in a folder, or None where its config.json does not say."""
    path = Path(model or "") / "config.json"
    if model is None or not path.is_file():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    values = values.get("text_config", values)
    names = ("hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
    if any(not values.get(name) for name in names):
        return None
    hidden, layers, inner, vocab = (int(values[name]) for name in names)
    if values.get("moe_intermediate_size"):
        inner = int(values["moe_intermediate_size"]) * int(values.get("num_experts_per_tok") or 1)
    width = int(values.get("head_dim") or 0) * int(values.get("num_attention_heads") or 0) or hidden
    stored = _stored(path.parent)
    return Shape(hidden, layers, inner, width, vocab, stored or _dense(values, hidden, layers, width, vocab))


def _stored(folder: Path) -> int:
    """Numbers in the folder's safetensors, from their headers; 0 where there is none."""
    total = 0
    for path in folder.glob("*.safetensors"):
        with path.open("rb") as file:
            header: dict[str, Any] = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, tensor in header.items():
            if name != "__metadata__":
                count = 1
                for side in tensor["shape"]:
                    count *= int(side)
                total += count
    return total


def _dense(values: dict[str, Any], hidden: int, layers: int, width: int, vocab: int) -> int:
    """Parameters of a dense decoder of this configuration."""
    heads = int(values.get("num_attention_heads") or 1)
    keys = width * int(values.get("num_key_value_heads") or heads) // heads
    layer = hidden * (2 * width + 2 * keys) + 3 * hidden * int(values["intermediate_size"]) + 2 * hidden
    return layers * layer + hidden + vocab * hidden * (1 if values.get("tie_word_embeddings", True) else 2)
