"""Conversations of many kinds, and a tokenizer for each fetched template: the small one plus its family's controls."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orjson

from tracemask.render.tokenizer import Tokenizer

SMALL = Path(__file__).resolve().parents[3] / "fixtures" / "tokenizers" / "small"

_CONTROL = re.compile(
    r"<\|[^|<>\n']{1,40}\|>|<｜[^｜<>\n']{1,40}｜>"
    r"|</?(?:start_of_turn|end_of_turn|bos|eos|s|think|tool_call|tool_response|turn|im_start|im_end)>"
    r"|<\|[a-z_\"]{1,30}>|<[a-z_]{1,30}\|>|\[/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS|TOOL_RESULTS|THINK)\]"
    r"|<end_of_utterance>|<SPECIAL_\d+>|\[gMASK\]|<sop>"
)
_ORDINARY = re.compile(r"</?(?:think|tool_call|tool_response)>")
_NAMED = {  # family → bos, eos
    "cohere": ("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
    "deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "diffusion": ("<bos>", "<eos>"),
    "gemma": ("<bos>", "<eos>"),
    "glm": ("[gMASK]", "<|endoftext|>"),
    "gptoss": ("<|startoftext|>", "<|return|>"),
    "idefics": ("<s>", "</s>"),
    "lfm": ("<|startoftext|>", "<|im_end|>"),
    "llama": ("<|begin_of_text|>", "<|eot_id|>"),
    "llava": ("<s>", "</s>"),
    "muse": ("<s>", "</s>"),
    "nemotron": ("<s>", "<|im_end|>"),
    "phi": ("<s>", "<|endoftext|>"),
    "qwen": (None, "<|im_end|>"),
    "smolvlm": ("<|im_start|>", "<end_of_utterance>"),
}
_MORE = {"glm": ("<|user|>", "<|observation|>"), "gptoss": ("<|call|>",)}


def tokenizer_for(name: str, source: str) -> Tokenizer:
    """The small tokenizer with the control tokens that the template writes, under the family's bos and eos."""
    json = orjson.loads((SMALL / "tokenizer.json").read_bytes())
    family = next(key for key in sorted(_NAMED, key=len, reverse=True) if name.startswith(key))
    bos, eos = _NAMED[family]
    wanted = {*_CONTROL.findall(source), *_MORE.get(family, ()), eos, *([bos] if bos else [])}
    have = {entry["content"] for entry in json["added_tokens"]}
    first = max(entry["id"] for entry in json["added_tokens"]) + 1
    flags = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
    for offset, text in enumerate(sorted(wanted - have)):
        special = not _ORDINARY.fullmatch(text)
        json["added_tokens"].append({"id": first + offset, "content": text, "special": special, **flags})
    return Tokenizer(json, config={"eos_token": eos} | ({"bos_token": bos} if bos else {}))


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def reply(text: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "content": text, "tool_call_id": "call00001", "name": "probe"}


def call(arguments: Any) -> list[dict[str, Any]]:
    return [{"id": "call00001", "type": "function", "function": {"name": "probe", "arguments": arguments}}]


TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "probe",
            "description": "Looks",
            "parameters": {
                "type": "object",
                "properties": {"x": {"type": "string", "description": "where"}},
                "required": ["x"],
            },
        },
    }
]
_LOOP = [user("UUU1"), reply("", tool_calls=call({"x": "XXX1"})), result("TTT1"), reply("AAA2")]

KINDS: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]] | None, dict[str, Any]]] = {
    "plain": ([user("UUU1"), reply("AAA1")], None, {}),
    "system": ([{"role": "system", "content": "SSS1"}, user("UUU1"), reply("AAA1")], None, {}),
    "multi": ([user("UUU1"), reply("AAA1"), user("UUU2"), reply("AAA2")], None, {}),
    "reasoning": (
        [user("UUU1"), reply("AAA1", reasoning_content="RRR1"), user("UUU2"), reply("AAA2", reasoning_content="RRR2")],
        None,
        {},
    ),
    "inline": ([user("UUU1"), reply("<think>\nRRR1\n</think>\n\nAAA1")], None, {}),
    "tools": ([user("UUU1"), reply("AAA1")], TOOLS, {}),
    "call": (_LOOP, TOOLS, {}),
    "call-none": ([_LOOP[0], {**_LOOP[1], "content": None}, *_LOOP[2:]], TOOLS, {}),
    "call-string": (
        [user("UUU1"), reply("AAA1", tool_calls=call('{"x": "XXX1"}')), result("TTT1"), reply("AAA2")],
        TOOLS,
        {},
    ),
    "reasoning-call": (
        [_LOOP[0], {**_LOOP[1], "reasoning_content": "RRR1"}, _LOOP[2], reply("AAA2", reasoning_content="RRR2")],
        TOOLS,
        {},
    ),
    "no-thinking": ([user("UUU1"), reply("AAA1")], None, {"enable_thinking": False}),
    "consecutive": ([user("UUU1"), reply("AAA1"), reply("AAA2")], None, {}),
    "newlines": ([user("UUU1\n"), reply("\n\nAAA1"), user("UUU2"), reply(" AAA2\n")], None, {}),
}
