"""Authors of an exact context: beyond what a row has, the engine's ids are read from where the row ended."""

from __future__ import annotations

from typing import Any

import pytest
from render_tools import of, renderer, small, text_of

from tracemask.core.vocab import Author
from tracemask.trace.model import Trace

HEAD = "<|im_start|>assistant\n"


def ids(text: str) -> list[int]:
    return small().encode(text)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def turn(role: str, text: str) -> str:
    return f"<|im_start|>{role}\n{text}<|im_end|>\n"


def rows(*messages: dict[str, Any]) -> Any:
    return renderer().render(Trace.from_messages(list(messages)))


@pytest.mark.parametrize("between", [{"author": "model"}, {"copied": True}])
def test_a_reply_that_nobody_sampled_here_keeps_its_author_between_two_that_were(between: dict[str, Any]) -> None:
    first = ids(turn("user", "one") + HEAD)
    red = ids("red<|im_end|>")
    second = first + red + ids("\n" + turn("user", "two") + turn("assistant", "green") + turn("user", "three") + HEAD)
    (row,) = rows(
        user("one"),
        {"role": "assistant", "content": "red", "token_ids": red, "prompt_ids": first},
        user("two"),
        {"role": "assistant", "content": "green", **between},
        user("three"),
        {"role": "assistant", "content": "blue", "token_ids": ids("blue<|im_end|>"), "prompt_ids": second},
    )
    assert not row.drift, "the engine saw exactly what the template writes"
    assert of(row, author=Author.TASKSET) == "one" and of(row, author=Author.USER) == "twothree"
    if between.get("author") == "model":
        assert "green" in of(row, author=Author.MODEL)
    assert text_of(row, row.sampled) == "red<|im_end|>blue<|im_end|>"
    assert row.message[row.sampled].tolist() == [1] * len(red) + [5] * len(ids("blue<|im_end|>"))


def test_the_closer_of_a_reply_that_was_cut_inside_a_character_is_no_drift() -> None:
    first = ids(turn("user", "one") + HEAD)
    cut = small().encode("ab 答")[:-1]
    assert b"\xe7\xad\x94" not in small().decode_bytes(cut), "the last character is not whole"
    second = first + cut + ids("<|im_end|>\n" + turn("user", "two") + HEAD)
    (row,) = rows(
        user("one"),
        {"role": "assistant", "content": small().decode_bytes(cut).decode(errors="replace"), "token_ids": cut,
         "prompt_ids": first, "finish_reason": "length"},
        user("two"),
        {"role": "assistant", "content": "blue", "token_ids": ids("blue<|im_end|>"), "prompt_ids": second},
    )  # fmt: skip
    assert [drift.where for drift in row.drift] == ["sampled"], "only the cut character itself is drift"
    assert of(row, author=Author.USER) == "two"


def test_a_row_that_goes_on_after_unanswered_messages_is_read_as_a_whole() -> None:
    first = ids(turn("user", "one") + HEAD)
    red = ids("red<|im_end|>")
    rest = "\n" + turn("user", "two")
    second = first + red + ids(rest + turn("user", "three") + HEAD)
    messages = [
        {**user("one"), "id": "a"},
        {"role": "assistant", "content": "red", "token_ids": red, "prompt_ids": first, "id": "b", "parent": "a"},
        {**user("two"), "id": "c", "parent": "b"},
        {**user("two"), "id": "d", "parent": "b"},
        {**user("three"), "id": "e", "parent": "d"},
        {"role": "assistant", "content": "blue", "token_ids": ids("blue<|im_end|>"), "prompt_ids": second, "id": "f",
         "parent": "e"},
    ]  # fmt: skip
    samples = rows(*messages)
    row = next(sample for sample in samples if (sample.message[sample.sampled] == 5).any())
    assert not row.drift
    assert of(row, author=Author.USER).endswith("twothree")
