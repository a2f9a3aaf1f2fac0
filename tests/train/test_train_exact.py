"""Loss and gradient of a prefix tree equal row-by-row training in float64, for token- and sequence-level terms."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from train_models import ROWS, VOCAB, tiny

from tracemask.recipe.step import LaidRow
from tracemask.store.row import Row
from tracemask.train.batching import dummy, selected, work_of
from tracemask.train.config import Packing
from tracemask.train.model import use_attention
from tracemask.train.plan import Rollout, fill, grow
from tracemask.train.step import PolicyStep, read_logprobs
from tracemask.train.tree import Sharing, lay_out

KINDS = ("llama", "qwen3", "sliding")
TERMS = {"ce": {}, "ppo": {"eps_low": 0.2, "eps_high": 0.2}, "gspo": {"eps_low": 3e-4, "eps_high": 4e-4}}


def recipe(term: str) -> Any:
    return SimpleNamespace(components={"rl": SimpleNamespace(term=term, coef=1.0, options=TERMS[term], mismatch=None)})


def laid_rows() -> list[LaidRow]:
    """Random weights and advantages per row; rows 0 and 2 share a fork with different weights, and are one rollout."""
    rng = np.random.default_rng(1)
    out = []
    for index, ids in enumerate(ROWS):
        weights = (rng.random(len(ids)) < 0.6) * rng.choice([1.0, 0.5], len(ids))
        weights[0] = 0
        out.append(
            LaidRow(
                row=Row(index, {"token_ids": ids, "logprob": rng.normal(-4, 0.3, len(ids))}, {"trace_id": f"r{index}"}),
                weights={"rl": weights},
                denominator={"rl": np.full(len(ids), 17.0)},
                advantage=np.full(len(ids), rng.normal()),
                rollout=[0, 1, 0, 2][index],
                group=0,
            )
        )
    return out


def total_and_gradient(step: PolicyStep, works: list[Any]) -> tuple[float, list[Tensor]]:
    step.zero_grad()
    value = 0.0
    for work in works:
        total, _ = step(work)
        total.backward()
        value += float(total.detach())
    return value, [parameter.grad.clone() for parameter in step.parameters() if parameter.grad is not None]


def row_by_row(step: PolicyStep, term: str, rows: list[LaidRow]) -> tuple[float, list[Tensor]]:
    """By autograd through transformers' own logits, one row at a time: nothing of ours but the formula."""
    model: Any = step.model
    model.set_attn_implementation("sdpa")
    step.zero_grad()
    logs: dict[int, list[tuple[Tensor, LaidRow, np.ndarray]]] = {}
    for ids, row in zip(ROWS, rows, strict=True):
        logits = model(torch.from_numpy(ids)[None], use_cache=False).logits[0]
        at = selected(row, len(ids))
        lp = logits.log_softmax(-1)[torch.from_numpy(at - 1), torch.from_numpy(ids[at])]
        logs.setdefault(row.rollout, []).append((lp, row, at))
    total = torch.zeros((), dtype=torch.float64)
    for members in logs.values():
        gap = torch.cat([lp - torch.from_numpy(row.row["logprob"][at]) for lp, row, at in members])
        mean = gap.mean()
        for lp, row, at in members:
            weight = torch.from_numpy(row.weights["rl"][at] / row.denominator["rl"][at])
            advantage = torch.from_numpy(row.advantage[at])
            total = total + (weight * formula(term, lp, row, at, advantage, mean)).sum()
    total.backward()
    return float(total.detach()), [
        parameter.grad.clone() for parameter in step.parameters() if parameter.grad is not None
    ]


def formula(term: str, lp: Tensor, row: LaidRow, at: np.ndarray, advantage: Tensor, mean: Tensor) -> Tensor:
    if term == "ce":
        return -lp
    low, high = TERMS[term]["eps_low"], TERMS[term]["eps_high"]
    if term == "ppo":
        ratio = (lp - torch.from_numpy(row.row["logprob"][at])).exp()
    else:
        ratio = (
            mean.exp().detach() * (lp - lp.detach()).exp()
        )  # the token form: each token pulls with its own advantage
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def worst(one: list[Tensor], other: list[Tensor]) -> float:
    scale = max(float(a.abs().max()) for a in one)
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)) / scale


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("term", TERMS)
def test_a_tree_trains_like_its_rows(kind: str, term: str) -> None:
    step = PolicyStep(tiny(kind), recipe(term))
    rows = laid_rows()
    value, gradient = row_by_row(step, term, rows)
    for name in ("segments", "dense"):
        use_attention(step.model, name)
        for sharing in Sharing:
            layout = lay_out(ROWS, sharing=sharing)
            got, grads = total_and_gradient(step, [work_of(layout, rows, dtype=torch.float64)])
            assert abs(got - value) < 1e-12
            assert worst(gradient, grads) < 1e-12


@pytest.mark.parametrize("term", TERMS)
def test_a_group_split_over_several_trees_and_micro_batches_trains_the_same(term: str) -> None:
    step = PolicyStep(tiny("llama", tied=True), recipe(term))
    rows = laid_rows()
    value, gradient = row_by_row(step, term, rows)
    use_attention(step.model, "segments")
    group = [Rollout("a", (0, 2), (ROWS[0], ROWS[2])), Rollout("b", (1,), (ROWS[1],)), Rollout("c", (3,), (ROWS[3],))]
    for packing in Packing:
        budget = 42 if packing is Packing.ROWS else 28
        micro = fill(grow(group, budget=budget, packing=packing), budget=budget)
        assert len(micro) > 1
        works = [work_of(one.lay_out(), [rows[row] for row in one.rows], dtype=torch.float64) for one in micro]
        got, grads = total_and_gradient(step, works)
        assert abs(got - value) < 1e-12
        assert worst(gradient, grads) < 1e-12


def test_a_dummy_micro_batch_adds_exactly_nothing_and_reaches_every_parameter() -> None:
    step = PolicyStep(use_attention(tiny("llama"), "segments"), recipe("ppo"))
    total, output = step(dummy(["rl"], dtype=torch.float64))
    total.backward()
    assert float(total.detach()) == 0.0
    assert output.components["rl"].value == 0.0
    for name, parameter in step.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


def test_log_probs_read_through_a_tree_are_those_of_each_row() -> None:
    step = PolicyStep(tiny("qwen3"), recipe("ce"))
    rows = laid_rows()
    with torch.no_grad():
        model: Any = step.model
        model.set_attn_implementation("sdpa")
        expected = []
        for ids, row in zip(ROWS, rows, strict=True):
            at = selected(row, len(ids))
            logits = model(torch.from_numpy(ids)[None], use_cache=False).logits[0].log_softmax(-1)
            expected.append(logits[torch.from_numpy(at - 1), torch.from_numpy(ids[at])])
    use_attention(step.model, "segments")
    got = read_logprobs(step, work_of(lay_out(ROWS), rows, dtype=torch.float64))
    assert float((got - torch.cat(expected)).abs().max()) < 1e-12


def test_attention_never_leaks_between_packed_documents() -> None:
    """Alone, packed after another document, and packed by the two wrong ways that bug reports show."""
    model: Any = tiny("qwen3")
    first, second = np.asarray([5, 9, 17, 3]), np.asarray([8, 2, 44, 7, 19])
    both = torch.from_numpy(np.concatenate([first, second]))[None]
    restarted = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]])

    def logprobs(logits: Tensor) -> Tensor:
        return logits[-5:-1].log_softmax(-1).gather(1, torch.from_numpy(second)[1:, None])

    with torch.no_grad():
        model.set_attn_implementation("sdpa")
        alone = logprobs(model(torch.from_numpy(second)[None], use_cache=False).logits[0])
        plain = logprobs(model(both, use_cache=False).logits[0])
        positions_only = logprobs(model(both, position_ids=restarted, use_cache=True).logits[0])
        use_attention(model, "segments")
        step = PolicyStep(model, recipe("ce"))
        weights = {"rl": np.r_[0.0, np.ones(4)]}
        rows = [
            LaidRow(Row(0, {"token_ids": first}), {"rl": np.zeros(4)}, {"rl": np.ones(4)}, np.zeros(4), 0, 0),
            LaidRow(Row(1, {"token_ids": second}), weights, {"rl": np.ones(5)}, np.zeros(5), 1, 0),
        ]
        layout = lay_out([first, second], sharing=Sharing.ROWS)
        ours = read_logprobs(step, work_of(layout, rows, dtype=torch.float64))
    assert float((ours - alone[:, 0]).abs().max()) < 1e-12
    assert float((plain - alone).abs().max()) > 1e-3
    assert float((positions_only - alone).abs().max()) > 1e-3


def test_a_small_vocabulary_holds_every_id_of_the_tests() -> None:
    assert max(int(row.max()) for row in ROWS) < VOCAB
    assert isinstance(tiny("llama"), nn.Module)
