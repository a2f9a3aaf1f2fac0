"""Renders and time against the number of turns: one render a conversation where the template only appends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from render_corpus import tokenizer_for
from render_tools import renderer, sampled_text, small

from tracemask.core.errors import RenderError
from tracemask.render.renderer import Renderer
from tracemask.render.template import Template
from tracemask.render.tokenizer import Tokenizer
from tracemask.trace.model import Trace

STOP = "<|im_end|>"


def loop(turns: int, *, sampled: bool, words: int = 8, reasoning: bool = True) -> Trace:
    """A tool loop of `turns` replies."""
    text = " ".join(["the harbour log counts every boat before noon"] * (words // 8))
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Count the boats."}]
    for turn in range(turns):
        thought = f"Look at page {turn}."
        arguments = f'{{"query": "page {turn}"}}'
        written = f'<tool_call>\n{{"name": "search", "arguments": {arguments}}}\n</tool_call>'
        spoken = f"<think>\n{thought}\n</think>\n\n{written}{STOP}"
        call = {"id": f"c{turn}", "type": "function", "function": {"name": "search", "arguments": arguments}}
        reply: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
        if reasoning:
            reply["reasoning_content"] = thought
        if sampled:
            reply["token_ids"] = small().encode(spoken)
        messages += [reply, {"role": "tool", "tool_call_id": f"c{turn}", "content": f"{turn} {text}"}]
    messages.append({"role": "assistant", "content": "Done."})
    if sampled:
        messages[-1]["token_ids"] = small().encode("Done." + STOP)
    return Trace.from_messages(messages)


def chat(turns: int) -> Trace:
    messages: list[dict[str, Any]] = []
    for turn in range(turns):
        messages += [{"role": "user", "content": f"Number {turn}?"}, {"role": "assistant", "content": f"{turn} boats."}]
    return Trace.from_messages(messages)


@pytest.mark.parametrize("make", [lambda n: loop(n, sampled=False), lambda n: loop(n, sampled=True), chat])
def test_the_number_of_renders_does_not_grow_with_the_turns(make: Callable[[int], Trace]) -> None:
    front = renderer()
    front.render(make(8))  # learns generation prompts and probes the template
    counts = []
    for turns in (8, 16, 32):
        before = front.counter.renders
        rows = front.render(make(turns))
        counts.append(front.counter.renders - before)
        assert len(rows) == 1
        assert len(sampled_text(rows[0])) == sum(1 for m in make(turns).messages if m.role == "assistant")
    assert counts == [1, 1, 1]
    assert front.counter.fallbacks == 0


def test_learning_costs_the_same_for_long_and_short_conversations() -> None:
    counts = []
    for turns in (8, 32):
        front = renderer()
        front.render(loop(turns, sampled=True))
        counts.append(front.counter.renders)
    assert counts[0] == counts[1] <= 24


@pytest.mark.real
def test_doubling_the_turns_at_most_triples_the_time(real_tokenizer: Callable[[str], Path]) -> None:
    tokenizer = Tokenizer.load(real_tokenizer("qwen3"))
    assert tokenizer.chat_template is not None
    template = Template(tokenizer.chat_template, tokens=tokenizer.token_strings, sandbox="inline")
    front = Renderer(tokenizer, template)
    front.render(loop(4, sampled=False, words=100))
    best: dict[int, float] = {}
    for turns in (20, 40, 80, 20, 40, 80, 20, 40, 80):
        trace = loop(turns, sampled=False, words=100)
        fresh = Renderer(tokenizer, template)
        fresh.render(loop(4, sampled=False, words=100))
        start = time.process_time()
        fresh.render(trace)
        best[turns] = min(best.get(turns, 1e9), time.process_time() - start)
    assert best[40] / best[20] <= 3.0 and best[80] / best[40] <= 3.0


def _exchange(turns: int, *, tools: bool, reasoning: bool) -> Trace:
    """`turns` replies and a last one: a tool loop, or a chat."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Begin."}]
    for turn in range(turns):
        name = f"call{turn:05}"
        call = {"id": name, "type": "function", "function": {"name": "probe", "arguments": {"x": f"v{turn}"}}}
        reply: dict[str, Any] = {"role": "assistant", "content": "" if tools else f"answer {turn}"}
        if tools:
            reply["tool_calls"] = [call]
        if reasoning:
            reply["reasoning_content"] = f"thought {turn}"
        answer = {"role": "tool", "tool_call_id": name, "name": "probe", "content": f"result {turn}"}
        messages += [reply, answer if tools else {"role": "user", "content": f"question {turn}"}]
    return Trace.from_messages([*messages, {"role": "assistant", "content": "The end."}])


REREADS = {"gemma4", "gemma4_v3", "gemma4_v4", "gemma4_v5", "diffusion_gemma"}
"""Templates that print a reply's tool name inside the tool's answer: each such turn is judged in its own render."""


@pytest.mark.real
@pytest.mark.parametrize("tools", [False, True], ids=["chat", "tools"])
@pytest.mark.parametrize("reasoning", [False, True], ids=["plain", "reasoning"])
def test_every_template_that_makes_one_row_needs_a_fixed_number_of_renders(
    real_templates: dict[str, str], tools: bool, reasoning: bool
) -> None:
    seen = 0
    for name, source in real_templates.items():
        if name.endswith("_training"):
            continue
        tokenizer = tokenizer_for(name, source)
        front = Renderer(tokenizer, Template(source, name=name, tokens=tokenizer.token_strings, sandbox="inline"))
        try:
            front.render(_exchange(4, tools=tools, reasoning=reasoning))
        except RenderError:
            continue  # no tools in this template
        counts: list[int] = []
        rows: list[int] = []
        for turns in (8, 24):
            before = front.counter.renders
            rows.append(len(front.render(_exchange(turns, tools=tools, reasoning=reasoning))))
            counts.append(front.counter.renders - before)
        if len(set(rows)) == 1 and not (tools and name in REREADS):
            seen += 1
            assert len(set(counts)) == 1 and counts[0] <= 2, (name, counts, rows)
        else:
            assert counts[-1] <= 26, (name, counts, rows)
    assert seen >= 15
