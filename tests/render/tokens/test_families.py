"""Peculiarities of families: gpt-oss channels, GLM's next-speaker stops, prefilled reasoning, repeated headers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from render_corpus import KINDS, TOOLS, reply, tokenizer_for, user

from tracemask.core.errors import RenderError
from tracemask.core.vocab import Origin, Part
from tracemask.render.renderer import Renderer
from tracemask.render.sample import Sample
from tracemask.render.template import Template
from tracemask.render.tokenizer import Tokenizer
from tracemask.trace.model import Trace

pytestmark = pytest.mark.real


def front(name: str, templates: dict[str, str], tokenizer: Tokenizer | None = None, history: str = "auto") -> Renderer:
    return made(name, templates[name], tokenizer, history)


@cache
def made(name: str, source: str, tokenizer: Tokenizer | None, history: str) -> Renderer:
    tokenizer = tokenizer or tokenizer_for(name, source)
    template = Template(source, name=name, tokens=tokenizer.token_strings, sandbox="inline")
    return Renderer(tokenizer, template, history=history)


@cache
def loaded(folder: Path) -> Tokenizer:
    return Tokenizer.load(folder)


def replies(renderer: Renderer, row: Sample) -> list[str]:
    texts: dict[int, list[int]] = {}
    for token, message in zip(row.token_ids[row.sampled].tolist(), row.message[row.sampled].tolist(), strict=True):
        texts.setdefault(message, []).append(token)
    return [renderer.tokenizer.decode_bytes(ids).decode() for ids in texts.values()]


def test_gpt_oss_channels_between_reasoning_and_answer_are_sampled(
    real_tokenizer: Callable[[str], Path], real_templates: dict[str, str]
) -> None:
    renderer = front("gptoss", real_templates, loaded(real_tokenizer("gptoss")))
    rows = renderer.render(Trace.from_messages(KINDS["reasoning"][0]))
    assert [replies(renderer, row) for row in rows] == [
        [f"<|channel|>analysis<|message|>RRR{n}<|end|><|start|>assistant<|channel|>final<|message|>AAA{n}<|return|>"]
        for n in (1, 2)
    ], "history writes <|end|> where <|return|> was sampled: each reply is read where it was the last"
    assert not any(row.approximate for row in rows)


def test_a_gpt_oss_call_ends_with_its_own_stop_and_its_name_in_the_tools_header_is_not_sampled(
    real_tokenizer: Callable[[str], Path], real_templates: dict[str, str]
) -> None:
    renderer = front("gptoss", real_templates, loaded(real_tokenizer("gptoss")))
    rows = renderer.render(Trace.from_messages(KINDS["call"][0], TOOLS))
    (call, answer) = [text for row in rows for text in replies(renderer, row)]
    assert call.startswith(" to=functions.probe") and call.endswith('{"x": "XXX1"}<|call|>')
    assert answer == "<|channel|>final<|message|>AAA2<|return|>"


def test_the_next_speakers_opener_is_the_stop_of_a_glm_reply(real_templates: dict[str, str]) -> None:
    renderer = front("glm4moe", real_templates, history="as_rendered")
    (row,) = renderer.render(Trace.from_messages(KINDS["multi"][0]))
    assert replies(renderer, row) == ["AAA1<|user|>", "AAA2"]
    assert [finding.code for finding in row.findings if finding.place.turn == 3] == ["TM316"]
    (row,) = renderer.render(Trace.from_messages(KINDS["call"][0], TOOLS))
    assert replies(renderer, row)[0].endswith("</tool_call><|observation|>")


def test_a_prefilled_opener_is_context_and_a_missing_one_makes_the_row_approximate(
    real_templates: dict[str, str],
) -> None:
    renderer = front("deepseek_r1_distill", real_templates)
    (row,) = renderer.render(Trace.from_messages([user("UUU1"), reply("AAA1")]))
    assert replies(renderer, row) == ["AAA1<｜end▁of▁sentence｜>"]
    assert row.approximate and [finding.code for finding in row.findings] == ["TM111"]
    thinking = front("qwen3_5_think", real_templates)
    (row,) = thinking.render(Trace.from_messages([user("UUU1"), reply("AAA1", reasoning_content="RRR1")]))
    assert replies(thinking, row) == ["RRR1\n</think>\n\nAAA1<|im_end|>"]
    assert not row.approximate


def test_the_context_of_sampled_ids_is_the_whole_prompt_with_its_opener(real_templates: dict[str, str]) -> None:
    renderer = front("deepseek_r1_distill", real_templates)
    spoken = "So.\n</think>\n\nAAA1<｜end▁of▁sentence｜>"
    message = reply("AAA1", reasoning_content="So.", token_ids=renderer.tokenizer.encode(spoken))
    second = reply("AAA2", token_ids=renderer.tokenizer.encode("No.\n</think>\n\nAAA2<｜end▁of▁sentence｜>"))
    chat = [user("UUU1"), message, user("UUU2"), second]
    rows = renderer.render(Trace.from_messages(chat))
    assert [replies(renderer, row) for row in rows] == [[spoken], ["No.\n</think>\n\nAAA2<｜end▁of▁sentence｜>"]]
    plain = [{key: value for key, value in message.items() if key != "token_ids"} for message in chat]
    for row, count in zip(rows, (1, 3), strict=True):
        assert row.token_ids[~row.sampled].tolist() == renderer.prompt_ids(plain[:count])
        assert not row.approximate
    assert set(rows[0].part[rows[0].sampled].tolist()) == {Part.REASONING, Part.CONTENT, Part.STOP}
    assert [drift.cause for drift in rows[0].drift] == ["think_strip"]


def test_gemma_4_repeats_neither_its_header_nor_the_tools_name_in_the_loss(real_templates: dict[str, str]) -> None:
    renderer = front("gemma4", real_templates)
    rows = renderer.render(Trace.from_messages(KINDS["call"][0], TOOLS))
    texts = [text for row in rows for text in replies(renderer, row)]
    assert texts[0].endswith("<tool_call|><|tool_response>") and "TTT1" not in texts[0]
    assert texts[1] == "AAA2<turn|>"


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_of_another_message_is_ever_sampled(kind: str, real_templates: dict[str, str]) -> None:
    """Over all fetched templates: sampled characters are the reply's own or literals."""
    messages, tools, kwargs = KINDS[kind]
    trace = Trace.from_messages(messages, tools, template_kwargs=kwargs)
    checked = 0
    for name in real_templates:
        if name.endswith("_training"):
            continue
        renderer = front(name, real_templates)
        try:
            rows = renderer.render(trace)
        except RenderError:
            continue
        checked += 1
        for row in rows:
            body = row.sampled & (row.origin != Origin.RENDERER) & (row.origin != Origin.FIELD)
            for message in set(row.message[body].tolist()):
                text = renderer.tokenizer.decode_bytes(row.token_ids[body & (row.message == message)].tolist()).decode()
                assert not any(other in text for other in ("UUU", "TTT", "SSS"))
    assert checked >= 15
