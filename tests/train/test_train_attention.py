"""Attention over laid-out slots equals row-by-row attention, value and gradient; each trap of packing is a canary.

A canary puts one known bug back and asserts that the comparison sees it: a comparison that cannot fail proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from train_models import ROWS, tiny

from tracemask.core.errors import TrainError
from tracemask.train import attention as attending
from tracemask.train.attention import check_flex, plan_of
from tracemask.train.model import hidden_states, use_attention
from tracemask.train.tree import Layout, Sharing, lay_out

KINDS = ("llama", "qwen3", "sliding")


def laid(model: nn.Module, layout: Layout) -> list[Tensor]:
    """Hidden states of each row through one layout."""
    ids, position = torch.from_numpy(layout.ids), torch.from_numpy(layout.position)
    hidden = hidden_states(model, ids, position, plan_of(layout))
    return [hidden[torch.from_numpy(slots)] for slots in layout.slots]


def alone(model: nn.Module) -> list[Tensor]:
    """Hidden states of each row by itself, by transformers' own sdpa attention (its eager softmax is float32)."""
    model.set_attn_implementation("sdpa")
    return [model.model(torch.from_numpy(row)[None], use_cache=False).last_hidden_state[0] for row in ROWS]


def gap(one: list[Tensor], other: list[Tensor]) -> float:
    """Largest absolute difference."""
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["segments", "dense", "flex"])
@pytest.mark.parametrize("sharing", Sharing)
def test_a_layout_computes_every_row_as_if_alone(kind: str, name: str, sharing: Sharing) -> None:
    model = tiny(kind)
    with torch.no_grad():
        expected = alone(model)
        got = laid(use_attention(model, name), lay_out(ROWS, sharing=sharing))
    assert gap(expected, got) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["segments", "dense"])
def test_a_tree_sends_back_the_same_gradient_as_its_rows(kind: str, name: str) -> None:
    model = tiny(kind)
    pull = [torch.from_numpy(np.random.default_rng(len(row)).normal(size=(len(row), 32))) for row in ROWS]

    def gradient(rows: list[Tensor]) -> list[Tensor]:
        total = sum((row * weight).sum() for row, weight in zip(rows, pull, strict=True))
        return list(torch.autograd.grad(total, list(model.model.parameters())))

    expected = gradient(alone(model))
    got = gradient(laid(use_attention(model, name), lay_out(ROWS)))
    for one, other in zip(expected, got, strict=True):
        assert float((one - other).abs().max() / one.abs().max()) < 1e-12


def packed_with_a_cache(model: nn.Module) -> list[Tensor]:
    """Packed rows with restarted positions while a cache is kept: transformers no longer sees the packing."""
    model.set_attn_implementation("sdpa")
    layout = lay_out(ROWS, sharing=Sharing.ROWS)
    ids, position = torch.from_numpy(layout.ids)[None], torch.from_numpy(layout.position)[None]
    hidden = model.model(ids, position_ids=position, use_cache=True).last_hidden_state[0]
    return [hidden[torch.from_numpy(slots)] for slots in layout.slots]


def packed_with_a_mask_of_ones(model: nn.Module) -> list[Tensor]:
    """A padding mask of ones switches the packing detection off too."""
    model.set_attn_implementation("sdpa")
    layout = lay_out(ROWS, sharing=Sharing.ROWS)
    ids, position = torch.from_numpy(layout.ids)[None], torch.from_numpy(layout.position)[None]
    out = model.model(ids, position_ids=position, attention_mask=torch.ones_like(ids), use_cache=False)
    return [out.last_hidden_state[0][torch.from_numpy(slots)] for slots in layout.slots]


def tree_without_a_mask(model: nn.Module) -> list[Tensor]:
    """Positions that jump at a fork are taken for a new packed row: the branch loses its prompt."""
    model.set_attn_implementation("sdpa")
    layout = lay_out(ROWS)
    ids, position = torch.from_numpy(layout.ids)[None], torch.from_numpy(layout.position)[None]
    hidden = model.model(ids, position_ids=position, use_cache=False).last_hidden_state[0]
    return [hidden[torch.from_numpy(slots)] for slots in layout.slots]


def bool_mask_with_eager_attention(model: nn.Module) -> list[Tensor]:
    """A bool mask is added to the scores as 0 and 1."""
    model.set_attn_implementation("eager")
    return masked(model, torch.from_numpy(lay_out(ROWS).mask()))


def window_by_slot(model: nn.Module) -> list[Tensor]:
    """A window measured in slots instead of depth."""
    layout = lay_out(ROWS)
    use_attention(model, "dense")
    plan = plan_of(layout)
    plan.position = torch.arange(len(layout))
    ids, position = torch.from_numpy(layout.ids), torch.from_numpy(layout.position)
    hidden = hidden_states(model, ids, position, plan)
    return [hidden[torch.from_numpy(slots)] for slots in layout.slots]


def one_mask_for_all_layers(model: nn.Module) -> list[Tensor]:
    """A 4D mask replaces the mask of the sliding-window layers."""
    model.set_attn_implementation("sdpa")
    return masked(model, torch.from_numpy(lay_out(ROWS).mask()))


def masked(model: nn.Module, mask_SS: Tensor) -> list[Tensor]:
    layout = lay_out(ROWS)
    ids, position = torch.from_numpy(layout.ids)[None], torch.from_numpy(layout.position)[None]
    out = model.model(ids, position_ids=position, attention_mask=mask_SS[None, None], use_cache=False)
    return [out.last_hidden_state[0][torch.from_numpy(slots)] for slots in layout.slots]


TRAPS: dict[str, tuple[str, Callable[[nn.Module], list[Tensor]]]] = {
    "packing with a cache": ("llama", packed_with_a_cache),
    "packing with a mask of ones": ("llama", packed_with_a_mask_of_ones),
    "a tree without a mask": ("llama", tree_without_a_mask),
    "a bool mask with eager attention": ("llama", bool_mask_with_eager_attention),
    "one mask for all layers": ("sliding", one_mask_for_all_layers),
    "a window by slot": ("sliding", window_by_slot),
}


@pytest.mark.parametrize("trap", TRAPS)
def test_a_trap_put_back_is_seen_and_is_not_ours(trap: str) -> None:
    kind, bug = TRAPS[trap]
    model = tiny(kind)
    with torch.no_grad():
        expected = alone(model)
        assert gap(expected, bug(model)) > 1e-2
        for sharing in Sharing:
            assert gap(expected, laid(use_attention(model, "segments"), lay_out(ROWS, sharing=sharing))) < 1e-12


def test_a_roll_in_place_of_the_parent_gather_spoils_the_gradient() -> None:
    model = use_attention(tiny("llama"), "segments")
    layout = lay_out(ROWS)
    ids, position = torch.from_numpy(layout.ids), torch.from_numpy(layout.position)
    head = model.lm_head.weight

    def gradient(parent: np.ndarray) -> Tensor:
        hidden = hidden_states(model, ids, position, plan_of(layout))
        chosen = torch.from_numpy(np.flatnonzero(layout.parent >= 0))
        logits = hidden[torch.from_numpy(parent)[chosen]] @ head.T
        picked = logits.log_softmax(-1).gather(1, ids[chosen][:, None])
        return torch.autograd.grad(picked.sum(), head)[0]

    def by_rows() -> Tensor:
        total, seen = torch.zeros((), dtype=torch.float64), set()
        model.set_attn_implementation("sdpa")
        for row in ROWS:
            hidden = model.model(torch.from_numpy(row)[None], use_cache=False).last_hidden_state[0]
            logprob = (hidden[:-1] @ head.T).log_softmax(-1)
            for at in range(1, len(row)):
                if (key := tuple(row[: at + 1])) not in seen:
                    seen.add(key)
                    total = total + logprob[at - 1, int(row[at])]
        return torch.autograd.grad(total, head)[0]

    ours, rolled = gradient(layout.parent), gradient(np.arange(len(layout)) - 1)
    expected = by_rows()
    assert float((ours - expected).abs().max() / expected.abs().max()) < 1e-12
    assert float((rolled - expected).abs().max() / expected.abs().max()) > 0.1


@pytest.mark.parametrize(
    "options",
    [{"dropout": 0.1}, {"position_bias": torch.zeros(2)}, {"is_causal": False}, {"indices": 1}, {"plan": None}],
)
def test_attention_refuses_what_it_would_have_to_ignore(options: dict[str, object]) -> None:
    plan = plan_of(lay_out([np.arange(4)]))
    parts = [torch.zeros(1, 2, 4, 8) for _ in range(3)]
    with pytest.raises(TrainError, match="TM960"):
        attending.segments(nn.Identity(), *parts, None, **({"plan": plan} | options))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_takes_float32_queries_beside_half_values_under_autocast() -> None:
    """As Qwen3's norms leave them; the probe, in float32, would not see the crash."""
    plan = plan_of(lay_out([np.arange(4), np.arange(6)]))
    parts = [torch.randn(1, 2, plan.size, 8) for _ in range(3)]
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        mixed = (parts[0], parts[1], parts[2].bfloat16())
        found, _ = attending.flex(nn.Identity(), *mixed, None, plan=plan)
        expected, _ = attending.segments(nn.Identity(), *mixed, None, plan=plan)
    assert found.dtype == torch.bfloat16
    assert float((found - expected).abs().max()) < 2e-2


@pytest.mark.parametrize("options", [{"softcap": 30.0}, {"s_aux": torch.zeros(2)}])
def test_flex_attention_refuses_what_only_segments_computes(options: dict[str, object]) -> None:
    plan = plan_of(lay_out([np.arange(4)]))
    parts = [torch.zeros(1, 2, 4, 8) for _ in range(3)]
    with pytest.raises(TrainError, match="TM960.*segments"):
        attending.flex(nn.Identity(), *parts, None, plan=plan, **options)


def test_flex_attention_is_refused_on_a_cpu() -> None:
    with pytest.raises(TrainError, match="no backward on a CPU"):
        check_flex(torch.device("cpu"))
