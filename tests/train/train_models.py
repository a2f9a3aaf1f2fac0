"""Tiny random models of the architectures that the train tests compare on."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from tracemask.core.vocab import Author, Part, Role
from tracemask.store.commit import write_dataset
from tracemask.store.row import Row
from tracemask.store.schema import make_metadata

VOCAB = 61
_draw = np.random.default_rng(3)
_PROMPT = _draw.integers(0, VOCAB, 9)
_FORK = np.concatenate([_PROMPT, _draw.integers(0, VOCAB, 6)])
ROWS = [
    np.concatenate([_FORK, _draw.integers(0, VOCAB, 7)]),
    np.concatenate([_PROMPT, _draw.integers(0, VOCAB, 3)]),
    np.concatenate([_FORK, _draw.integers(0, VOCAB, 4)]),
    _draw.integers(0, VOCAB, 8),
]


def tiny(
    kind: str,
    *,
    tied: bool = False,
    dtype: torch.dtype = torch.float64,
    norms: str = "exact",
    seed: int = 0,
    **changes: Any,
) -> Any:
    """`llama`, `qwen3` or `sliding` (Qwen3, two sliding-window layers of 5), weights large enough to matter.

    Unless norms is "own", RMSNorm is replaced by torch's: Hugging Face's computes in float32, a floor of 1e-7.
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
    return exact_norms(model.to(dtype)) if norms == "exact" else model.to(dtype)


def exact_norms(model: nn.Module) -> nn.Module:
    """Every RMSNorm computed in the model's own dtype."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__.endswith("RMSNorm") and hasattr(child, "variance_epsilon"):
                norm = nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon, dtype=child.weight.dtype)
                norm.weight = child.weight
                setattr(parent, name, norm)
    return model


def rollouts(*, groups: int = 4, size: int = 4, seed: int = 0, spread: int = 12, fork: bool = True) -> list[Row]:
    """Rows as convert would write them: a shared prompt, sampled tokens with log-probs, a tool's answer, a reward.

    Lengths are skewed. With `fork` the first rollout of each group has a second row that shares its beginning.
    """
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for group in range(groups):
        prompt = rng.integers(0, VOCAB, 6)
        for attempt in range(size):
            length = 4 + int(rng.integers(0, spread) * (3 if group == 0 else 1))
            body = np.concatenate(
                [rng.integers(0, VOCAB, length), rng.integers(0, VOCAB, 3), rng.integers(0, VOCAB, 4)]
            )
            author = np.r_[np.full(6, Author.TASKSET), np.full(length, Author.POLICY), np.full(3, Author.ENVIRONMENT)]
            author = np.r_[author, np.full(4, Author.POLICY)].astype(np.uint8)
            reward = float(rng.random() < 0.5)
            scalars = {"trace_id": f"g{group}a{attempt}", "group_id": f"g{group}", "reward": reward}
            ids = np.concatenate([prompt, body])
            rows.append(row_of(len(rows), ids, author, author == Author.POLICY, rng, {**scalars, "branch": 0}))
            if fork and attempt == 0:
                again = np.concatenate([ids[:-4], rng.integers(0, VOCAB, 5)])
                owner = np.r_[author[:-4], np.full(5, Author.POLICY)].astype(np.uint8)
                own = np.r_[np.zeros(len(ids) - 4, bool), np.ones(5, bool)]
                forked = {**scalars, "branch": 1, "fork_row": 0, "fork_position": len(ids) - 4}
                rows.append(row_of(len(rows), again, owner, own, rng, forked))
    return rows


def row_of(
    index: int,
    ids: np.ndarray,
    author: np.ndarray,
    sampled: np.ndarray,
    rng: np.random.Generator,
    facts: dict[str, Any],
) -> Row:
    """One row with every column of a shard."""
    size = len(ids)
    columns = {
        "token_ids": ids.astype(np.int32),
        "author": author,
        "role": np.where(author == Author.ENVIRONMENT, Role.TOOL, Role.ASSISTANT).astype(np.uint8),
        "part": np.where(author == Author.ENVIRONMENT, Part.TOOL_OUTPUT, Part.CONTENT).astype(np.uint8),
        "message": np.zeros(size, np.int32),
        "origin": np.zeros(size, np.uint8),
        "sampled": sampled,
        "logprob": np.where(sampled, rng.normal(-4.1, 0.1, size), np.nan).astype(np.float32),
    }
    full = {
        "id": f"{facts['trace_id']}/{facts['branch']}",
        "fidelity": "exact",
        "truncated": False,
        "trainable": True,
        "n_tokens": size,
        "n_sampled": int(sampled.sum()),
    }
    return Row(index, columns, {**full, **facts})


def write(path: Any, rows: list[Row]) -> str:
    """The rows as a dataset on disk."""
    metadata = make_metadata(tokenizer_sha256="0" * 64, vocab_size=VOCAB)
    write_dataset(str(path), rows, metadata=metadata, rows_per_shard=5)
    return str(path)
