"""The memory estimate against what is counted: bytes that autograd keeps, parameters, and the parts of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tracemask.train.attention import plan_of
from tracemask.train.config import TrainConfig
from tracemask.train.memory import activations, estimate, shape_of
from tracemask.train.model import hidden_states, use_attention
from tracemask.train.tree import Sharing, lay_out

SLOTS = 512


def saved(folder: Path, kind: str, **changes: Any) -> Any:
    """A random model of four layers, written to `folder`."""
    import transformers

    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "vocab_size": 64}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
    model = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**shape | changes))
    model.save_pretrained(folder)
    return model


def kept_by_autograd(model: Any, half: bool) -> int:
    """Bytes of distinct storages that the forward pass keeps, parameters and buffers apart."""
    ids = np.random.default_rng(0).integers(0, 60, SLOTS // 2)
    layout = lay_out([ids, ids[::-1].copy()], sharing=Sharing.ROWS)
    own = {one.untyped_storage().data_ptr() for one in [*model.parameters(), *model.buffers()]}
    found: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", dtype=torch.bfloat16, enabled=half),
    ):
        hidden_states(model, torch.from_numpy(layout.ids), torch.from_numpy(layout.position), plan_of(layout))
    return sum(found.values())


def config(folder: Path, **changes: Any) -> TrainConfig:
    return TrainConfig.of({"data": ["x"], "model": str(folder), "tokens_per_batch": SLOTS, **changes})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["Llama", "Qwen2"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_activations_of_the_estimate_are_those_that_autograd_keeps(
    tmp_path: Path, kind: str, dtype: str, checkpointing: bool
) -> None:
    model = use_attention(saved(tmp_path, kind), "segments")
    settings = config(tmp_path, dtype=dtype, gradient_checkpointing=checkpointing)
    shape = shape_of(str(tmp_path))
    assert shape is not None
    expected = activations(shape, settings)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        expected -= activations(shape, config(tmp_path, dtype=dtype)) // shape.layers  # the layer under recomputation
    measured = kept_by_autograd(model, dtype == "bfloat16")
    assert expected == pytest.approx(measured, rel=0.08)


@pytest.mark.parametrize("tied", [True, False])
def test_parameters_come_from_the_files_and_without_them_from_the_shape(tmp_path: Path, tied: bool) -> None:
    model = saved(tmp_path, "Llama", tie_word_embeddings=tied)
    count = sum(one.numel() for one in model.parameters())
    for keep in (True, False):
        if not keep:
            (tmp_path / "model.safetensors").unlink()
        shape = shape_of(str(tmp_path))
        assert shape is not None
        assert shape.parameters == count


def test_adapters_have_few_gradients_and_a_reference_is_a_second_model(tmp_path: Path) -> None:
    saved(tmp_path, "Llama")
    plain, lora = estimate(config(tmp_path)), estimate(config(tmp_path, lora={"rank": 2}))
    assert lora["optimizer"] < plain["optimizer"] / 8
    assert estimate(config(tmp_path, reference="initial"))["weights"] == 2 * plain["weights"]
    assert estimate(config(tmp_path, lora={"rank": 2}, reference="initial"))["weights"] == plain["weights"]
    assert estimate(TrainConfig.of({"data": ["x"], "init_tiny": True})) == {}
