"""Fourteen kinds of conversation for template tests. Plain data; knows no template."""

from __future__ import annotations

import json
from typing import Any

Chat = tuple[list[dict[str, Any]], list[dict[str, Any]] | None]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "berth",
            "description": "Look up a berth: número, «quay», <b>.",
            "parameters": {
                "type": "object",
                "properties": {
                    "ship": {"type": "string", "description": "its name", "enum": ["Alba", "Brisa"]},
                    "nights": {"type": "integer", "default": 3},
                    "flag": {"type": ["string", "null"]},
                    "draught": {"type": "object", "properties": {"m": {"type": "number"}}, "required": ["m"]},
                    "crew": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["ship"],
            },
        },
    },
    {"type": "function", "function": {"name": "tide", "parameters": {"type": "object", "properties": {}}}},
]
ARGUMENTS: dict[str, Any] = {
    "ship": 'Señora "Brisa"',
    "nights": 3,
    "moored": True,
    "flag": None,
    "draught": {"m": 1.5},
    "crew": ["Ana", "Bo"],
}


def system(text: str = "Harbour desk.") -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def call(arguments: Any, number: int = 0, name: str = "berth") -> dict[str, Any]:
    return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def tool(text: str, number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call0000{number}", "name": "berth", "content": text}


CHATS: dict[str, Chat] = {
    "plain": ([system(), user("Where is Alba?"), assistant("Quay 4.")], None),
    "no system": ([user("Where is Alba?"), assistant("Quay 4.")], None),
    "many turns": (
        [system(), user("One?"), assistant("1"), user("Two? \n"), assistant(" 2\n\n"), user("Three?")],
        None,
    ),
    "tools declared": ([system(), user("Where?"), assistant("Here.")], TOOLS),
    "call with an object": (
        [user("Find."), assistant("", tool_calls=[call(ARGUMENTS)]), tool("quay 4"), assistant("Quay 4.")],
        TOOLS,
    ),
    "call with a string": (
        [user("Find."), assistant("", tool_calls=[call(json.dumps(ARGUMENTS))]), tool("quay 4"), assistant("Quay 4.")],
        TOOLS,
    ),
    "parallel calls": (
        [
            system(),
            user("Both."),
            assistant("Looking.", tool_calls=[call(ARGUMENTS), call({"ship": "Alba"}, 1)]),
            tool("quay 4"),
            tool("quay 5", 1),
            assistant("4 and 5."),
            user("Thanks."),
        ],
        TOOLS,
    ),
    "reasoning": (
        [
            system(),
            user("One?"),
            assistant("1", reasoning_content="Count."),
            user("Two?"),
            assistant("2", reasoning_content="Count on."),
        ],
        None,
    ),
    "reasoning and calls": (
        [
            user("Find."),
            assistant("", reasoning_content="Ask the desk.", tool_calls=[call(ARGUMENTS)]),
            tool('{"quay": 4}'),
            assistant("Quay 4.", reasoning_content="It said 4."),
        ],
        TOOLS,
    ),
    "inline reasoning": (
        [
            user("One?"),
            assistant("<think>\nCount.\n</think>\n\n1"),
            user("Two?"),
            assistant("<think>\nCount on.\n</think>\n\n2"),
        ],
        None,
    ),
    "empty content": ([system(), user(""), assistant(""), user("Hello?")], None),
    "null content": (
        [user("Find."), assistant(None, tool_calls=[call(ARGUMENTS)]), tool("quay 4"), assistant("Quay 4.")],
        TOOLS,
    ),
    "special text": (
        [
            system(),
            user("naïve <|im_end|> 🦊 <b>\t</s> {{ x }} {% y %}"),
            assistant("<|eot_id|> “ok” <|im_start|>\r\n日本 <think>"),
        ],
        None,
    ),
    "content parts": (
        [user([{"type": "text", "text": "Where is"}, {"type": "text", "text": " Alba?"}]), assistant("Quay 4.")],
        None,
    ),
}
TOKENS = {"bos_token": "<BOS>", "eos_token": "<EOS>", "unk_token": "<UNK>", "pad_token": "<PAD>"}
