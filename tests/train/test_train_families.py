"""Loss and gradient of many architectures, packed and as a tree, against transformers' own forward, row by row."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from train_models import ROWS, VOCAB, exact_norms

from tracemask.core.errors import TrainError
from tracemask.recipe.step import LaidRow
from tracemask.store.row import Row
from tracemask.train.batching import work_of
from tracemask.train.build import proven
from tracemask.train.model import TRIED, head_facts, probe, use_attention
from tracemask.train.step import PolicyStep
from tracemask.train.tree import Sharing, lay_out

CE = SimpleNamespace(components={"rl": SimpleNamespace(term="ce", coef=1.0, options=None, mismatch=None)})
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MIXED = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}
EXPERTS |= {"moe_intermediate_size": 16}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 12}
LATENT |= EXPERTS | {"num_key_value_heads": 4, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Llama tied": {"tie_word_embeddings": True},
    "Mistral": {"sliding_window": 5},
    "Ministral3": {},
    "Mixtral": EXPERTS,
    "Qwen2": {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    "Qwen2Moe": EXPERTS | {"shared_expert_intermediate_size": 16},
    "Qwen3": {},
    "Qwen3Moe": EXPERTS,
    "Gemma": {},
    "Gemma2": MIXED | {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0},
    "Gemma3": MIXED | {"final_logit_softcapping": 2.0},
    "Phi": {"resid_pdrop": 0.0, "embd_pdrop": 0.0},
    "Phi3": {},
    "Olmo": {},
    "Olmo2": {},
    "Olmo3": MIXED,
    "Olmoe": EXPERTS,
    "Granite": {"logits_scaling": 4.0, "embedding_multiplier": 3.0, "attention_multiplier": 0.3},
    "GraniteMoe": EXPERTS | {"logits_scaling": 4.0},
    "Cohere": {"logit_scale": 0.5},
    "Cohere2": MIXED | {"logit_scale": 0.5},
    "Glm": {},
    "Glm4": {},
    "Glm4Moe": EXPERTS | {"first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    "DeepseekV2": LATENT,
    "DeepseekV3": LATENT,
    "GptOss": MIXED | EXPERTS,
    "SmolLM3": {"no_rope_layers": [1, 0]},
    "Starcoder2": {"residual_dropout": 0.0, "embedding_dropout": 0.0},
    "Ernie4_5": {},
    "HunYuanDenseV1": {},
    "Exaone4": MIXED,
    "Apertus": {},
    "GPTNeoX": {"hidden_dropout": 0.0, "attention_dropout": 0.0},
}


def build(name: str, **changes: Any) -> Any:
    """A random model in float64, its norms and sinks away from their initial values."""
    import transformers

    kind = name.split()[0]
    config = getattr(transformers, kind + ("TextConfig" if kind == "Gemma3" else "Config"))
    torch.manual_seed(0)
    made = config(**(COMMON | FAMILIES.get(name, {}) | changes))
    made._attn_implementation, made._experts_implementation = "eager", "eager"  # float64 needs plain experts
    model = getattr(transformers, f"{kind}ForCausalLM")(made).double()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    return exact_norms(model)


def rows() -> list[LaidRow]:
    out = []
    for at, ids in enumerate(ROWS):
        weights = np.r_[0.0, np.random.default_rng(at).random(len(ids) - 1)]
        one = {"rl": weights}
        out.append(LaidRow(Row(at, {"token_ids": ids}), one, {"rl": np.full(len(ids), 7.0)}, np.zeros(len(ids)), at, 0))
    return out


def expected(model: Any) -> tuple[float, list[Tensor]]:
    total = torch.zeros((), dtype=torch.float64)
    for ids, row in zip(ROWS, rows(), strict=True):
        logits = model(torch.from_numpy(ids)[None], use_cache=False).logits[0]
        lp = logits[:-1].log_softmax(-1).gather(1, torch.from_numpy(ids)[1:, None])[:, 0]
        total = total - (lp * torch.from_numpy(row.weights["rl"][1:])).sum() / 7
    return float(total.detach()), gradients(model, total)


def gradients(model: Any, total: Tensor) -> list[Tensor]:
    parameters = list(model.parameters())
    found = torch.autograd.grad(total, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_trains_like_its_own_forward(name: str) -> None:
    model = build(name).eval()
    value, slopes = expected(model)
    scale = max(float(one.abs().max()) for one in slopes)
    use_attention(model, "segments")
    assert probe(model, vocab=VOCAB) < 2e-6
    for attention in ("segments", "dense"):
        use_attention(model, attention)
        step = PolicyStep(model, CE)
        for sharing in Sharing:
            total, _ = step(work_of(lay_out(ROWS, sharing=sharing), rows(), dtype=torch.float64))
            # 1e-6: several families compute norms, routers or softmax in float32 whatever the model's dtype
            assert float(total.detach()) == pytest.approx(value, rel=1e-6)
            worst = max(float((a - b).abs().max()) for a, b in zip(slopes, gradients(model, total), strict=True))
            assert worst / scale < 2e-6


def test_every_family_that_a_refusal_recommends_is_tried_here() -> None:
    kinds = {build(name).config.model_type for name in FAMILIES}
    assert set(TRIED) == kinds


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("Phi", {"resid_pdrop": 0.1}, "set resid_pdrop to 0"),
        ("GPTNeoX", {"hidden_dropout": 0.1}, "set hidden_dropout to 0"),
        ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32}, "set dropout to 0"),
        ("Mixtral", {"router_jitter_noise": 0.1}, "set router_jitter_noise to 0"),
        ("OPT", {"ffn_dim": 48, "word_embed_proj_dim": 32, "layerdrop": 0.5, "dropout": 0.0}, "set layerdrop to 0"),
        ("Nemotron", {}, "layout"),
        ("ModernBertDecoder", {}, "cannot be called|attention"),
    ],
)
def test_a_model_that_would_train_another_function_is_refused(name: str, changes: dict[str, Any], word: str) -> None:
    with pytest.raises(TrainError, match=f"TM960.*({word})"):
        probe(use_attention(build(name, **changes), "segments"), vocab=VOCAB)


@pytest.mark.filterwarnings("ignore")
def test_a_head_that_no_configuration_gives_away_is_found_by_its_logits() -> None:
    """The same body and head, with logits that the model's own forward bends afterwards."""
    model = use_attention(build("Llama"), "segments")
    assert probe(model, vocab=VOCAB) < 1e-12
    model.forward = lambda *a, forward=model.forward, **k: bent(forward(*a, **k))
    with pytest.raises(TrainError, match=r"TM960.*logits differ"):
        probe(model, vocab=VOCAB)


@pytest.mark.filterwarnings("ignore")
def test_where_flex_lacks_a_feature_auto_settles_on_segments() -> None:
    model = use_attention(build("Gemma2"), "flex")
    with pytest.raises(TrainError, match="TM960.*segments"):
        proven(model, "flex", vocab=VOCAB, settle=False)
    assert proven(model, "flex", vocab=VOCAB, settle=True) == "segments"
    assert proven(use_attention(build("Llama"), "flex"), "flex", vocab=VOCAB, settle=True) == "flex"


def bent(out: Any) -> Any:
    out.logits = out.logits.tanh()
    return out


def test_facts_of_the_head_are_read_where_a_family_keeps_them() -> None:
    assert head_facts(build("Granite")).scale == 0.25
    assert head_facts(build("Cohere")).scale == 0.5
    assert head_facts(build("Gemma3")).softcap == 2.0
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in TRIED)
