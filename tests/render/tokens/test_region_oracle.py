"""An oracle that shares nothing with rendering: transformers' Jinja, letters that occur in one field only, and the
tokenizers package, over every template. A region begins where the generation prompt ends and ends with its stop."""

from __future__ import annotations

import copy
import json
import random
import re
from collections import Counter
from datetime import date
from typing import Any

import numpy as np
import orjson
import pytest
import tokenizers
from render_corpus import TOOLS, tokenizer_for

from tracemask.core.errors import RenderError
from tracemask.core.vocab import Author, Origin
from tracemask.render.renderer import Renderer
from tracemask.render.sample import Sample
from tracemask.render.template import Template
from tracemask.render.tokenizer import Tokenizer
from tracemask.trace.model import Trace

pytestmark = pytest.mark.real
EMPTY_THOUGHT = re.compile(r"\s*(?:<think>\s*</think>|\[THINK\]\s*\[/THINK\])\s*")
SOURCES = {"content": Origin.CONTENT, "reasoning": Origin.REASONING, "call": Origin.TOOL_CALL}
Chat = list[dict[str, Any]]


class Drawn:
    """A conversation in which every letter belongs to one field: where[letter] is (message, field)."""

    def __init__(self, seed: str) -> None:
        self.draw = random.Random(seed)
        self.where: dict[str, tuple[int, str]] = {}
        self.chat: Chat = []
        self.tools: list[dict[str, Any]] | None = None
        if self.draw.random() < 0.4:
            self.add("system")
        for _ in range(self.draw.randint(1, 3)):
            self.add("user")
            if self.draw.random() < 0.4:
                self.tools = TOOLS
                self.call()
            self.add("assistant")
        if self.draw.random() < 0.2:
            self.add("user")

    def text(self, field: str) -> str:
        letters = [chr(0x4E00 + len(self.where) + offset) for offset in range(self.draw.randint(1, 4))]
        self.where |= dict.fromkeys(letters, (len(self.chat), field))
        return self.draw.choice(["", "", "\n", "\n\n", " "]) + "".join(letters) + self.draw.choice(["", "", "\n", " "])

    def add(self, role: str, **fields: Any) -> None:
        message = {"role": role, "content": self.text("content"), **fields}
        if role == "assistant" and self.draw.random() < 0.4:
            message["reasoning_content"] = self.text("reasoning")
        self.chat.append(message)

    def call(self) -> None:
        name = f"call{len(self.chat):05}"
        arguments: Any = {"x": self.text("call")}
        if self.draw.random() < 0.4:
            arguments = json.dumps(arguments, ensure_ascii=False)
        call = {"id": name, "type": "function", "function": {"name": "probe", "arguments": arguments}}
        self.add("assistant", tool_calls=[call])
        self.add("tool", tool_call_id=name, name="probe")


class Plain:
    """transformers' text and the tokenizers package's ids."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        self.source, self.tokens = source, tokenizer.token_strings
        self.encoder = tokenizers.Tokenizer.from_str(orjson.dumps(tokenizer.json).decode())

    def text(self, chat: Chat, tools: Any, *, prompt: bool = False) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        options = {"chat_template": self.source, "add_generation_prompt": prompt, **self.tokens}
        said = render_jinja_template(conversations=[chat], tools=tools, **options)[0][0]
        if any(json.dumps(value, ensure_ascii=False) in said for value in strings(chat)):  # JSON quoted as a string
            return render_jinja_template(conversations=[parsed(chat)], tools=tools, **options)[0][0]
        return said

    def region(self, drawn: Drawn, k: int, stops: list[str]) -> str | None:
        """The text of reply k with its stop; None where the definition leaves it open."""
        before, after = drawn.chat[:k], drawn.chat[: k + 1]
        context = self.text(before, drawn.tools, prompt=True)
        header = context.removeprefix(self.text(before, drawn.tools))
        own, whole = self.text(after, drawn.tools), self.text(drawn.chat, drawn.tools)
        places = [at for at, letter in enumerate(own) if drawn.where.get(letter, (-1,))[0] == k]
        want = sum(message == k for message, _ in drawn.where.values())
        if not own.startswith(context) or not header.strip() or len(places) < want or places[0] < len(context):
            return None
        thought = EMPTY_THOUGHT.match(own, len(context), places[0])
        start = thought.end() if thought and not own[len(context) : places[0]].endswith("\n\n\n") else len(context)
        if thought and drawn.chat[k]["content"][:1].isspace():
            return None  # its white space and the block's stand side by side
        found = [(own.find(stop, places[-1]), stop) for stop in stops if own.find(stop, places[-1]) >= 0]
        at, stop = min(found) if found else (len(own), "")
        said = own[start : at + len(stop)]
        return said if said in whole and found else None


def strings(chat: Chat) -> list[str]:
    """Arguments that are strings."""
    calls = [call for message in chat for call in message.get("tool_calls", ())]
    return [call["function"]["arguments"] for call in calls if isinstance(call["function"]["arguments"], str)]


def parsed(chat: Chat) -> Chat:
    """The conversation as engines pass it: arguments are objects."""
    chat = copy.deepcopy(chat)
    for call in [call for message in chat for call in message.get("tool_calls", ())]:
        if isinstance(call["function"]["arguments"], str):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return chat


def located(row: Sample, tokenizer: Tokenizer) -> tuple[str, np.ndarray]:
    """The row's text and, for each of its characters, the token in which it begins."""
    pieces = [tokenizer.id_bytes(token) for token in row.token_ids.tolist()]
    text = b"".join(pieces).decode()
    ends = np.cumsum([len(piece) for piece in pieces])
    starts = np.cumsum([0, *(len(letter.encode()) for letter in text[:-1])])
    return text, np.searchsorted(ends, starts, side="right")


def judge(drawn: Drawn, plain: Plain, front: Renderer, seen: Counter[str]) -> None:
    rows = front.render(Trace.from_messages(drawn.chat, drawn.tools))
    stops = [front.tokenizer.added[token].content for token in front.stop_ids]
    for row in rows:
        text, token_of = located(row, front.tokenizer)
        for letter, token in zip(text, token_of, strict=True):
            if letter in drawn.where:
                message, field = drawn.where[letter]
                assert (row.message[token], row.origin[token]) == (message, SOURCES[field])
                assert (row.author[token] == Author.POLICY) == (drawn.chat[message]["role"] == "assistant")
                seen["letters"] += 1
    for k, message in enumerate(drawn.chat):
        if message["role"] != "assistant":
            continue
        owned = [row.token_ids[row.sampled & (row.message == k)] for row in rows]
        (ids,) = [found for found in owned if len(found)]
        expected = plain.region(drawn, k, stops)
        if expected is not None:
            assert ids.tolist() == plain.encoder.encode(expected, add_special_tokens=False).ids
            seen["regions"] += 1


def test_regions_ids_and_authors_are_those_of_the_oracle(real_templates: dict[str, str]) -> None:
    seen: Counter[str] = Counter()
    for name, source in real_templates.items():
        tokenizer = tokenizer_for(name, source)
        template = Template(source, name=name, tokens=tokenizer.token_strings, date=date.today(), sandbox="inline")
        front, plain = Renderer(tokenizer, template), Plain(source, tokenizer)
        for number in range(6):
            drawn = Drawn(f"{name} {number}")
            try:
                plain.text(drawn.chat, drawn.tools)
                for k, message in enumerate(drawn.chat):
                    if message["role"] == "assistant":
                        plain.text(drawn.chat[:k], drawn.tools, prompt=True)
            except Exception:
                seen["refused"] += 1
                continue
            try:
                judge(drawn, plain, front, seen)
            except RenderError:
                seen["refused by us"] += 1
            except AssertionError as error:
                raise AssertionError(f"{name}: {json.dumps(drawn.chat, ensure_ascii=False)}") from error
    assert seen["refused by us"] <= 2, seen
    assert seen["letters"] > 5000 and seen["regions"] > 300, seen
