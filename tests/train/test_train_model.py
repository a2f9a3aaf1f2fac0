"""What is refused, by layer type and by behaviour; schedules; metrics files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from train_models import VOCAB, tiny

from tracemask.core.errors import TrainError, UsageError
from tracemask.train.metrics import JsonLines, add, json_line, means
from tracemask.train.model import head_facts, init_tiny, load, probe, refuse_config, use_attention
from tracemask.train.schedule import factor


def config_of(kind: str, **values: Any) -> Any:
    import transformers

    return getattr(transformers, kind)(**values)


@pytest.mark.parametrize(
    ("kind", "values", "word"),
    [
        ("Qwen3NextConfig", {}, "linear_attention"),
        ("MambaConfig", {}, "linear_attention"),
        ("JambaConfig", {}, "linear_attention"),
        ("Lfm2Config", {"full_attn_idxs": [0]}, "conv"),
        ("Llama4TextConfig", {}, "chunked_attention"),
        ("LlamaConfig", {"attention_dropout": 0.1}, "dropout"),
        ("LlamaConfig", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}, "dynamic"),
        ("T5Config", {}, "encoder"),
    ],
)
def test_models_that_look_across_rows_are_refused_by_name(kind: str, values: dict[str, Any], word: str) -> None:
    with pytest.raises(TrainError, match=f"TM960.*{word}"):
        refuse_config(config_of(kind, **values))


def test_a_recurrent_model_that_lists_no_layer_types_is_refused_by_its_modules() -> None:
    from transformers import RwkvConfig, RwkvForCausalLM

    config = RwkvConfig(num_hidden_layers=2, hidden_size=16, attention_hidden_size=16, vocab_size=8)
    refuse_config(config)
    with pytest.raises(TrainError, match="TM960.*Rwkv"):
        use_attention(RwkvForCausalLM(config), "segments")


@pytest.mark.parametrize("kind", ["LlamaConfig", "Qwen3Config", "MistralConfig", "Gemma3TextConfig", "SmolLM3Config"])
def test_full_and_sliding_attention_are_accepted(kind: str) -> None:
    refuse_config(config_of(kind))


class Leaky(nn.Module):
    """A decoder layer's norm that also averages over the whole row: no list of layer types knows it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out = self.inner(hidden)
        return out + 0.1 * out.mean(1, keepdim=True)


def test_a_leak_that_no_name_gives_away_is_found_by_its_behaviour() -> None:
    model: Any = use_attention(tiny("llama"), "segments")
    assert probe(model, vocab=VOCAB) < 1e-12
    model.model.layers[0].input_layernorm = Leaky(model.model.layers[0].input_layernorm)
    with pytest.raises(TrainError, match="TM960.*change each other"):
        probe(model, vocab=VOCAB)


def test_hidden_states_that_are_not_finite_are_refused_too() -> None:
    model: Any = use_attention(tiny("llama"), "segments")
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(TrainError, match="TM960"):
        probe(model, vocab=VOCAB)


def test_a_missing_model_is_a_coded_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="TM901"):
        load(str(tmp_path / "nothing"))
    with pytest.raises(UsageError, match="TM901"):
        load(str(tmp_path))


def test_the_tiny_model_is_the_same_for_the_same_seed() -> None:
    one, two, other = init_tiny(50, seed=1), init_tiny(50, seed=1), init_tiny(50, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_the_head_s_scale_and_soft_cap_come_from_the_configuration() -> None:
    model: Any = nn.Module()
    model.config = config_of("CohereConfig", logit_scale=0.5)
    assert head_facts(model).scale == 0.5
    model.config = config_of("GraniteConfig", logits_scaling=4.0)
    assert head_facts(model).scale == 0.25
    model.config = config_of("Gemma2Config", final_logit_softcapping=30.0)
    assert head_facts(model).softcap == 30.0


def test_the_rate_warms_up_then_falls_to_the_floor() -> None:
    rates = [factor("linear", k, total=10, warmup=2, floor=0.1) for k in range(10)]
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert rates == sorted(rates[:3]) + sorted(rates[3:], reverse=True)
    assert factor("linear", 10, total=10, floor=0.1) == pytest.approx(0.1)
    assert factor("cosine", 5, total=10) == pytest.approx(0.5)
    assert {factor("constant", k, total=10) for k in range(10)} == {1.0}
    with pytest.raises(UsageError, match="TM902"):
        factor("stairs", 1, total=3)


def test_metrics_add_up_and_maxima_do_not() -> None:
    total = add({}, {"a": (1.0, 2.0), "r/max": (3.0, 1.0)})
    add(total, {"a": (5.0, 1.0), "r/max": (2.0, 1.0), "empty": (0.0, 0.0)})
    assert means(total) == {"a": 2.0, "r/max": 3.0}
    add(total, {"rl/ratio": (3.0, 2.0), "rl/ratio_squared": (5.0, 2.0)})
    assert means(total)["rl/effective_sample"] == pytest.approx(1.5**2 / 2.5)


def test_a_metrics_file_forgets_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4, "cut by a ki')
    file = JsonLines(path, after_step=2)
    file.write({"step": 3, "loss": float("nan")})
    file.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 1},
        {"step": 2},
        {"step": 3, "loss": "nan"},
    ]
    assert json_line({"x": float("inf")}) == '{"x": "inf"}'


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_damaged_weights_are_not_taken_for_a_strange_architecture(bad: float) -> None:
    model = use_attention(tiny("llama", dtype=torch.float32), "segments")
    with torch.no_grad():
        model.get_submodule("model.layers.1.mlp.up_proj").weight[0, 0] = bad  # type: ignore[index, operator]
    with pytest.raises(TrainError, match=r"TM960 1 parameters hold NaN or infinity, model\.layers\.1\.mlp\.up_proj"):
        probe(model, vocab=VOCAB)
