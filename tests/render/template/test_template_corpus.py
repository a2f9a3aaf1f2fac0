"""Every chat template that can be had, against transformers' own rendering and against labelled characters."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from odd_chats import OddChats
from template_chats import CHATS, TOKENS, TOOLS, assistant, call, system, tool, user

from tracemask.core.errors import RenderError
from tracemask.core.vocab import Origin
from tracemask.render.engine import Job
from tracemask.render.template import Template
from tracemask.render.text import RenderedText, Span

pytestmark = pytest.mark.real
ROOT = Path(__file__).resolve().parents[3]
REAL = ("qwen3", "llama3_1", "deepseek_v3", "gemma3")
Corpus = dict[str, str]


@pytest.fixture(scope="module")
def corpus(real_templates: Corpus, real_tokenizer: Callable[[str], Path]) -> Corpus:
    sources = dict(real_templates)
    for name in REAL:
        config = json.loads((real_tokenizer(name) / "tokenizer_config.json").read_text(encoding="utf-8"))
        sources[f"{name} (tokenizer)"] = config["chat_template"]
    return sources


@pytest.fixture(scope="module")
def templates(corpus: Corpus) -> dict[str, Template]:
    return {
        name: Template(source, name=name, tokens=TOKENS, date=date.today(), sandbox="inline")
        for name, source in corpus.items()
    }


@pytest.fixture(scope="module")
def documented() -> Any:
    """docs/generate_templates.py: renders the corpus beside transformers."""
    spec = importlib.util.spec_from_file_location("generate_templates", ROOT / "docs" / "generate_templates.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_text_is_transformers_text_byte_for_byte_or_a_coded_refusal(corpus: Corpus, documented: Any) -> None:
    found = documented.results()
    assert set(found) == set(corpus) and len(found) == 76
    count: Counter[str] = Counter()
    for name, outcomes in found.items():
        for kind, verdict, ours, theirs in outcomes:
            count[verdict] += 1
            assert verdict not in ("differs", "refused by us"), (name, kind, ours, theirs)
            if isinstance(ours, RenderError):
                assert ours.code in ("TM920", "TM921"), (name, kind, ours)
            else:
                assert covered(ours), (name, kind)
    assert sum(count.values()) == 76 * len(CHATS) * 2
    assert count["identical"] >= 1700
    page = (ROOT / documented.PAGE).read_text(encoding="utf-8")
    assert documented.page(found) == page, "stale: run python docs/generate_templates.py"


def test_odd_conversations_render_or_fail_as_they_do_in_transformers(
    corpus: Corpus, templates: dict[str, Template], peer: Any
) -> None:
    odd = OddChats(20261129)
    same = 0
    for _ in range(60):
        chat, kwargs = odd.chat(), odd.kwargs()
        options: dict[str, Any] = {"tools": odd.tools(), "add_generation_prompt": odd.chance(0.5)}
        for name in odd.draw.sample(sorted(corpus), 10):
            try:
                theirs = peer.apply_chat_template(
                    copy.deepcopy(chat), chat_template=corpus[name], tokenize=False, **options, **kwargs
                )
            except Exception:  # whatever a template raises
                theirs = None
            ours = templates[name].render_many([Job(chat, kwargs=kwargs, **options)])[0]
            if isinstance(ours, RenderError):
                assert theirs is None, (name, chat, ours)
            elif theirs is None:
                assert ours.passed_otherwise, (name, chat)
            else:
                assert ours.text == theirs, (name, chat)
                assert covered(ours)
                same += 1
    assert same > 300


def covered(rendered: RenderedText) -> bool:
    """The spans cover the text exactly once, in order, and none is empty."""
    at = 0
    for span in rendered.spans:
        if span.start != at or span.end <= at:
            return False
        at = span.end
    return at == len(rendered.text)


# ---------------------------------------------------------------- sentinels


class Labels:
    """Hands out private-use characters, one for each field: a character of the output names its field."""

    def __init__(self) -> None:
        self.owner: dict[str, tuple[int, Origin, tuple[str | int, ...]]] = {}

    def text(self, source: int, origin: Origin, *path: str | int, shape: str = " {0}{0} {0}\n{0} ") -> str:
        character = chr(0xE000 + len(self.owner))
        self.owner[character] = (source, origin, path)
        return shape.format(character)


def labelled(tags: Labels) -> list[tuple[list[dict[str, Any]], list[dict[str, Any]] | None]]:
    """Conversations of labelled characters only (field names, roles and ids apart)."""

    def body(index: int) -> str:
        return tags.text(index, Origin.CONTENT, "content")

    def thought(index: int) -> str:
        return tags.text(index, Origin.REASONING, "reasoning_content")

    def calls(index: int, count: int) -> list[dict[str, Any]]:
        made: list[dict[str, Any]] = []
        for number in range(count):
            where = (index, Origin.TOOL_CALL, "tool_calls", number, "function")
            name = tags.text(*where, "name", shape="{0}{0}")
            key = tags.text(*where, "arguments", "KEY", shape="{0}{0}")
            value = tags.text(*where, "arguments", "KEY")
            nested = tags.text(*where, "arguments", "deep", "inner", 0)
            made.append(call({key: value, "deep": {"inner": [nested, 1, True, None]}}, number, name))
        return made

    def schema() -> list[dict[str, Any]]:
        tools = copy.deepcopy(TOOLS)
        tools[0]["function"]["description"] = tags.text(-1, Origin.TOOLS, "tools", 0, "function", "description")
        ship = tools[0]["function"]["parameters"]["properties"]["ship"]
        ship["description"] = tags.text(-1, Origin.TOOLS, "tools", 0, "function", "parameters", "properties", "ship")
        return tools

    plain = [system(body(0)), user(body(1)), assistant(body(2)), user(body(3)), assistant(body(4)), user(body(5))]
    thinking = [user(body(0)), assistant(body(1), reasoning_content=thought(1)), user(body(2))]
    thinking.append(assistant(body(3), reasoning_content=thought(3)))
    acting = [
        system(body(0)),
        user(body(1)),
        assistant(body(2), tool_calls=calls(2, 2)),
        tool(body(3)),
        tool(body(4), 1),
    ]
    acting += [
        assistant(body(5), reasoning_content=thought(5), tool_calls=calls(5, 1)),
        tool(body(6)),
        assistant(body(7)),
    ]
    parts = [[{"type": "text", "text": tags.text(0, Origin.CONTENT, "content", n, "text")} for n in range(2)]]
    mixed = [user(parts[0]), assistant(body(1)), user(body(2))]
    inline = [user(body(0)), assistant(f"<think>\n{tags.text(1, Origin.CONTENT, 'content')}\n</think>\n\n{body(1)}")]
    return [(plain, None), (thinking, None), (acting, schema()), (mixed, None), (inline, None)]


def agrees(span: Span, owner: tuple[int, Origin, tuple[str | int, ...]]) -> bool:
    """The span names the field's message and origin, and a path that leads to it."""
    source, origin, path = owner
    shared = tuple(step for step in path if step != "KEY")[: len(span.field)]
    known = span.field[: len(shared)] == shared
    return span.source == source and span.origin is origin and (known or origin is Origin.TOOL_CALL)


def test_no_content_character_is_lost_or_given_to_another_message_or_field(templates: dict[str, Template]) -> None:
    tags = Labels()
    chats = labelled(tags)
    seen: Counter[Origin] = Counter()
    wrong: list[str] = []
    for name, template in templates.items():
        for messages, tools in chats:
            try:
                rendered = template.render(messages, tools=tools)
            except RenderError:
                continue
            for span in rendered.spans:
                for character in rendered.text[span.start : span.end]:
                    owner = tags.owner.get(character)
                    if owner is None:
                        continue
                    seen[owner[1]] += 1
                    if not agrees(span, owner):
                        wrong.append(f"{name}: {character!r} of {owner} attributed to {span}")
    assert not wrong, wrong[:5]
    assert seen[Origin.CONTENT] > 5000 and seen[Origin.REASONING] > 200, seen
    assert seen[Origin.TOOL_CALL] > 1000 and seen[Origin.TOOLS] > 200, seen


def test_a_literal_beside_content_in_a_message_loop_has_that_messages_position(templates: dict[str, Template]) -> None:
    """Position: in a plain chat each reply stands in its own iteration, whatever the template."""
    messages = [user("UUU1"), assistant("AAA1"), user("UUU2"), assistant("AAA2")]
    checked = 0
    for name, template in templates.items():
        try:
            rendered = template.render(messages)
        except RenderError:
            continue
        for span in rendered.spans:
            if span.origin is Origin.CONTENT:
                assert span.message == span.source, (name, span)
                checked += 1
    assert checked >= 4 * 70


def test_generation_blocks_have_the_ranges_that_transformers_gives_them(
    corpus: Corpus, templates: dict[str, Template]
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    compared = 0
    for name, source in corpus.items():
        if "generation" not in source or not name.endswith("_training"):
            continue
        for kind in ("plain", "many turns", "parallel calls", "reasoning and calls"):
            messages, tools = CHATS[kind]
            try:
                texts, ranges = render_jinja_template(
                    [messages], tools=tools, chat_template=source, return_assistant_tokens_mask=True, **TOKENS
                )
            except Exception:  # whatever a template raises
                continue
            rendered = templates[name].render(messages, tools=tools)
            assert rendered.text == texts[0], (name, kind)
            assert list(rendered.generation) == ranges[0], (name, kind)
            compared += len(ranges[0])
    assert compared > 100


def test_worker_and_inline_give_the_same_render(corpus: Corpus, templates: dict[str, Template]) -> None:
    for name, source in list(corpus.items())[::6]:
        inline = templates[name]
        worker = Template(source, name=name, tokens=TOKENS, date=inline.date, sandbox="worker")
        for messages, tools in CHATS.values():
            here, there = (each.render_many([Job(messages, tools)])[0] for each in (inline, worker))
            assert str(here) == str(there) if isinstance(here, RenderError) else here == there
