"""Trees of sampled replies: whatever their shape and order, each reply is trained once, verbatim, after its context."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from render_tools import renderer, same, small

from tracemask.core.vocab import Author
from tracemask.render.renderer import Renderer
from tracemask.render.sample import Sample
from tracemask.trace.model import Trace

STOP = "<|im_end|>"
WORDS = st.sampled_from(["one", "two", "three", "日本", "<think>\nhm\n</think>\n\nyes", "\n\nled", "a<|im_end|>b", ""])
MODEST = settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FRONT: list[Renderer] = []


def front() -> Renderer:
    if not FRONT:
        FRONT.append(renderer())
    return FRONT[0]


@st.composite
def trees(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages with ids and parents; replies are sampled with or without their prompt, or text, or another model's."""
    nodes: list[dict[str, Any]] = [{"role": "user", "content": draw(WORDS), "id": "n0", "parent": None}]
    fidelity = draw(st.sampled_from(["exact", "completion", "any"]))
    for number in range(1, draw(st.integers(2, 9))):
        parent = nodes[draw(st.integers(0, number - 1)) if draw(st.booleans()) else number - 1]
        reply = parent["role"] == "user"
        node = {"role": "assistant" if reply else "user", "content": draw(WORDS), "id": f"n{number}"}
        nodes.append({**node, "parent": parent["id"]})
        how = draw(st.sampled_from(["exact", "completion", "text", "model"])) if fidelity == "any" else fidelity
        if reply and how == "model":
            nodes[-1]["author"] = "model"
        elif reply and how != "text":
            said = [token for token in small().encode(draw(WORDS) + f" {number}") if token not in front().stop_ids]
            nodes[-1]["token_ids"] = [*said, *small().encode(STOP)]
            nodes[-1]["logprobs"] = [-0.5 - number] * (len(said) + 1)
            if how == "exact":
                nodes[-1]["prompt_ids"] = front().prompt_ids([bare(node) for node in path(nodes, nodes[-1])[:-1]])
    return nodes


def bare(node: dict[str, Any]) -> dict[str, Any]:
    return {"role": node["role"], "content": node["content"]}


def path(nodes: list[dict[str, Any]], leaf: dict[str, Any]) -> list[dict[str, Any]]:
    by_id = {node["id"]: node for node in nodes}
    out = [leaf]
    while out[-1]["parent"] is not None:
        out.append(by_id[out[-1]["parent"]])
    return out[::-1]


def owned(rows: list[Sample], nodes: list[dict[str, Any]]) -> dict[str, list[tuple[int, int, list[int], list[float]]]]:
    """Id of a message → (row, first token, ids, log-probs) of each row that trains it."""
    found: dict[str, list[tuple[int, int, list[int], list[float]]]] = {}
    for index, row in enumerate(rows):
        for message in np.unique(row.message[row.sampled]).tolist():
            at = np.flatnonzero(row.sampled & (row.message == message))
            entry = (index, int(at[0]), row.token_ids[at].tolist(), row.logprob[at].tolist())
            found.setdefault(nodes[message]["id"], []).append(entry)
    return found


@MODEST
@given(trees(), st.randoms(use_true_random=False))
def test_each_reply_is_trained_once_whatever_the_order_of_the_branches(nodes: list[dict[str, Any]], order: Any) -> None:
    rows = front().render(Trace.from_messages(nodes, id="t"))
    assert same(front().render(Trace.from_messages(nodes, id="t")), rows)
    shuffled: list[dict[str, Any]] = []
    ready = [node for node in nodes if node["parent"] is None]
    while ready:
        shuffled.append(ready.pop(order.randrange(len(ready))))
        ready += [node for node in nodes if node["parent"] == shuffled[-1]["id"]]
    first = owned(rows, nodes)
    second = owned(front().render(Trace.from_messages(shuffled, id="t")), shuffled)
    for node in nodes:
        if node["role"] != "assistant" or "author" in node:
            assert node["id"] not in first
            continue
        ((index, start, ids, logprobs),) = first[node["id"]]
        ((_, _, others, _),) = second[node["id"]]
        if "token_ids" in node:
            assert ids == others == node["token_ids"]
            assert np.allclose(logprobs, node["logprobs"])
        if "prompt_ids" in node:
            assert rows[index].token_ids[:start].tolist() == node["prompt_ids"]


@MODEST
@given(trees())
def test_a_row_forks_from_a_prefix_that_it_shares(nodes: list[dict[str, Any]]) -> None:
    rows = front().render(Trace.from_messages(nodes, id="t"))
    for index, row in enumerate(rows):
        assert row.branch == index
        assert (row.author[row.sampled] == Author.POLICY).all()
        shared = [common(row, other) for other in rows[:index]]
        if row.fork is None:
            assert not any(shared)
        else:
            assert 0 < row.fork.position <= shared[row.fork.row]


def common(row: Sample, other: Sample) -> int:
    size = min(len(row), len(other))
    different = np.flatnonzero(row.token_ids[:size] != other.token_ids[:size])
    return int(different[0]) if len(different) else size
