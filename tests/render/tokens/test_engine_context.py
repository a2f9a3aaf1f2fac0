"""The context of a sampled reply is what the template wrote when it was sampled, for templates that rewrite history."""

from __future__ import annotations

from typing import Any

import pytest
from render_corpus import TOOLS, call, reply, result, tokenizer_for, user

from tracemask.core.vocab import Author
from tracemask.render.renderer import Renderer
from tracemask.render.template import Template
from tracemask.trace.model import Trace

pytestmark = pytest.mark.real

CHAT = [
    user("UUU0"),
    reply(None, tool_calls=call({"q": "aaa1"})),
    result("ttt2"),
    reply("DDD3"),
    user("UUU4"),
    reply("CCC5", tool_calls=call({"q": "aaa5"})),
    result("ttt6"),
    reply("DDD7"),
]


def front(name: str, source: str) -> Renderer:
    tokenizer = tokenizer_for(name, source)
    return Renderer(tokenizer, Template(source, name=name, tokens=tokenizer.token_strings, sandbox="inline"))


@pytest.mark.parametrize("name", ["gptoss", "gemma4_v5", "qwen3", "glm4moe", "qwen3_6", "nemotron_3_nano"])
@pytest.mark.parametrize("exact", [False, True])
def test_text_that_history_drops_later_stands_before_the_reply_that_saw_it(
    name: str, exact: bool, real_templates: dict[str, str]
) -> None:
    renderer = front(name, real_templates[name])
    tokenizer = renderer.tokenizer
    chat: list[dict[str, Any]] = [dict(message) for message in CHAT]
    sampled = [*tokenizer.encode("DDD7"), min(renderer.stop_ids)]
    for k in (1, 3, 7):
        prompt = renderer.prompt_ids(CHAT[:k], TOOLS)
        chat[k] |= {"token_ids": sampled} | ({"prompt_ids": prompt} if exact else {})
    row = next(r for r in renderer.render(Trace.from_messages(chat, tools=TOOLS)) if (r.message[r.sampled] == 7).any())
    start = int((row.sampled & (row.message == 7)).argmax())
    context = row.token_ids[:start].tolist()
    if exact:
        assert context == prompt
    want = tokenizer.decode_bytes(prompt).decode()
    text = tokenizer.decode_bytes(context).decode()
    assert text[text.index("UUU4") :] == want[want.index("UUU4") :], "what is behind it is as the template has it"
    if "CCC5" in text:
        at = len(tokenizer.encode(text[: text.index("CCC5")]))
        assert row.author[at] == Author.POLICY


@pytest.mark.parametrize("stop", ["<|user|>", "<|observation|>"])
def test_a_stop_that_only_the_next_message_would_write_is_no_drift(stop: str, real_templates: dict[str, str]) -> None:
    renderer = front("glm4moe", real_templates["glm4moe"])
    tokenizer = renderer.tokenizer
    for text in ("AAA", "\n<think></think>\nAAA"):
        ids = [*tokenizer.encode(text), tokenizer.id_of(stop)]
        (row,) = renderer.render(Trace.from_messages([user("UUU"), reply("AAA", token_ids=ids)]))
        assert not row.drift
        assert row.token_ids[row.sampled].tolist() == ids
        assert row.token_ids[~row.sampled].tolist() == renderer.prompt_ids([user("UUU")])
    (row,) = renderer.render(Trace.from_messages([user("UUU"), reply("BBB", token_ids=ids)]))
    assert [drift.cause for drift in row.drift] == ["text_changed"]
