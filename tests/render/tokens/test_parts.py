"""What each stretch of a reply is, in the forms that models sample and templates write."""

from __future__ import annotations

import pytest

from tracemask.core.vocab import Part
from tracemask.render.parts import reply_parts

THOUGHT = "<|channel|>analysis<|message|>Hm.<|end|>"
CALL = '<|message|>{"x": 1}'


def stretches(text: str) -> list[tuple[str, Part]]:
    starts, parts = reply_parts(text)
    cut = [text[start:end] for start, end in zip(starts, [*starts[1:], len(text)], strict=True)]
    return [(piece, part) for piece, part in zip(cut, parts, strict=True) if piece]


@pytest.mark.parametrize(
    "call",
    [
        f" to=functions.probe<|channel|>commentary json{CALL}",
        f"<|channel|>commentary to=functions.probe <|constrain|>json{CALL}",
        f"<|channel|>commentary to=functions.probe json{CALL}",
    ],
)
def test_the_header_of_a_harmony_call_is_the_call(call: str) -> None:
    assert stretches(call) == [(call, Part.TOOL_CALL)]
    inner = "<|start|>assistant" + call
    assert stretches(THOUGHT + inner) == [(THOUGHT, Part.REASONING), (inner, Part.TOOL_CALL)]
    said = "<|channel|>commentary<|message|>I look.<|end|>"
    assert stretches(said + inner) == [(said, Part.CONTENT), (inner, Part.TOOL_CALL)]


def test_the_header_of_a_harmony_answer_is_the_answer() -> None:
    answer = "<|start|>assistant<|channel|>final<|message|>Send it to=me."
    assert stretches(THOUGHT + answer) == [(THOUGHT, Part.REASONING), (answer, Part.CONTENT)]
    assert stretches(answer + "<|end|><|start|>assistant" + THOUGHT)[-1] == (
        "<|start|>assistant" + THOUGHT,
        Part.REASONING,
    )
