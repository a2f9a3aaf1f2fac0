"""A whole rollout as one reply, dumps of ids alone: what the environment wrote inside ends no turn of the policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from render_tools import of, renderer, sampled_text, small, text_of

from tracemask.core.vocab import Author, Part, Role
from tracemask.trace.model import Trace

STOP = "<|im_end|>"
ASK = {"role": "user", "content": "Well?"}
FIRST = "<think>\nHm.\n</think>\n\nLook." + STOP
ANSWER = f"\n<|im_start|>user\n<tool_response>\n<think> is a tag\n</tool_response>{STOP}\n<|im_start|>assistant\n"
LAST = "<think>\nSo.\n</think>\n\nDone." + STOP


def ids(text: str) -> list[int]:
    return small().encode(text)


def rollout(*parts: tuple[str, str], **fields: Any) -> Trace:
    """One reply of (author, text) stretches."""
    tokens: list[int] = []
    spans: list[dict[str, Any]] = []
    for author, text in parts:
        start = len(tokens)
        tokens += ids(text)
        if author != "policy":
            spans.append({"start": start, "end": len(tokens), "author": author})
    reply = {"role": "assistant", "content": None, "token_ids": tokens, "spans": spans, **fields}
    return Trace.from_messages([ASK, reply])


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("content", [None, FIRST + ANSWER + LAST])
def test_a_stop_before_an_environments_text_ends_a_turn_and_not_the_training(
    prompted: bool, content: str | None
) -> None:
    prompt = {"prompt_ids": renderer().prompt_ids([ASK])} if prompted else {}
    trace = rollout(("policy", FIRST), ("environment", ANSWER), ("policy", LAST), content=content, **prompt)
    (row,) = renderer().render(trace)
    assert sampled_text(row) == [FIRST, LAST]
    assert "TM317" not in [finding.code for finding in row.findings]
    assert of(row, author=Author.ENVIRONMENT) == ANSWER
    inside = row.author == Author.ENVIRONMENT
    assert set(row.part[inside].tolist()) == {Part.TOOL_OUTPUT} and set(row.role[inside].tolist()) == {Role.TOOL}
    said = row.author == Author.POLICY
    assert text_of(row, said & (row.part == Part.STOP)) == STOP * 2
    assert text_of(row, said & (row.part == Part.REASONING)) == "<think>\nHm.\n</think><think>\nSo.\n</think>"


@pytest.mark.parametrize("more", [("policy", "and more" + STOP), ("policy", STOP)])
def test_a_stop_that_the_policy_itself_goes_on_after_leaves_the_turn_untrained(more: tuple[str, str]) -> None:
    (row,) = renderer().render(rollout(("policy", FIRST), ("environment", ANSWER), ("policy", LAST), more))
    assert not row.sampled.any()
    assert "TM317" in [finding.code for finding in row.findings]


@pytest.mark.parametrize("prompted", [True, False])
def test_a_reply_whose_log_holds_ids_alone_drifts_from_nothing(prompted: bool) -> None:
    prompt = {"prompt_ids": renderer().prompt_ids([ASK])} if prompted else {}
    (row,) = renderer().render(rollout(("policy", FIRST), **prompt))
    assert row.drift == [] and sampled_text(row) == [FIRST]


def test_a_prompt_of_which_the_log_holds_no_text_drifts_from_nothing() -> None:
    prompt = renderer().prompt_ids([ASK])
    reply = {"role": "assistant", "content": None, "token_ids": ids(FIRST), "prompt_ids": prompt}
    for before in ([], [{"role": "user", "content": None}]):
        (row,) = renderer().render(Trace.from_messages([*before, reply]))
        assert row.drift == [] and sampled_text(row) == [FIRST]
        assert row.token_ids[: len(prompt)].tolist() == prompt


def test_text_that_differs_from_the_ids_is_still_drift() -> None:
    reply = {"role": "assistant", "content": "No.", "token_ids": ids(FIRST)}
    (row,) = renderer().render(Trace.from_messages([ASK, reply]))
    assert [drift.cause for drift in row.drift] == ["text_changed"]
    empty = {"role": "assistant", "content": "", "token_ids": ids(FIRST)}
    (row,) = renderer().render(Trace.from_messages([ASK, empty]))
    assert row.drift, "an empty text is a text"
    assert np.isnan(row.logprob).all()


def test_a_later_context_that_lacks_a_reply_of_which_the_log_holds_ids_alone_is_reported() -> None:
    unknown = {"role": "assistant", "content": None, "token_ids": ids(FIRST)}
    more = {"role": "user", "content": "More?"}
    last = {"role": "assistant", "content": "Done.", "token_ids": ids("Done." + STOP)}
    prompt = renderer().prompt_ids([ASK]) + ids(FIRST + "\n<|im_start|>user\nMore?<|im_end|>\n<|im_start|>assistant\n")

    def lost(*messages: dict[str, Any]) -> list[int | None]:
        rows = renderer().render(Trace.from_messages(messages))
        return [finding.place.turn for row in rows for finding in row.findings if finding.code == "TM103"]

    assert lost(ASK, unknown, more, last) == [1]
    assert lost(ASK, unknown, more, {**last, "prompt_ids": prompt}) == []
    assert lost(ASK, unknown) == []
    assert lost(ASK, {**unknown, "content": "Look.", "reasoning_content": "Hm."}, more, last) == []
