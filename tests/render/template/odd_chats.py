"""Seeded odd conversations: missing fields, wrong types, empty and null content, unusual orders. Knows no template."""

from __future__ import annotations

import random
from typing import Any

TEXTS = [
    *("", "a", "  x \n", "<think>", "</think>", "<think>\nr\n</think>\n\nans", "é🦊", '{"a": 1}', "<|im_end|>", "\n\n"),
    *("true", "null", 'it\'s "q"', "<tool_response>\nx\n</tool_response>", "a<b>&c", "[TOOL_CALLS]", "%s {}", "\t"),
]
SCHEMAS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "integer", "description": "d", "enum": [1, 2]},
    {"type": ["string", "null"], "default": None},
    {"type": "array", "items": {"type": "string"}},
    {"type": "object", "properties": {"z": {"type": "boolean", "default": True}}, "required": ["z"]},
    {},
    {"oneOf": [{"type": "string"}, {"type": "number", "nullable": True}]},
]
NEXT = {"user": ["assistant"], "assistant": ["user", "tool", "tool"], "tool": ["tool", "assistant", "assistant"]}


class OddChats:
    """Draws conversations; the same seed gives the same ones."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def value(self, depth: int = 0) -> Any:
        kind = self.draw.randrange(10) if depth < 3 else 0
        if kind < 4:
            return self.draw.choice(TEXTS)
        if kind < 7:
            return self.draw.choice([0, 1, -5, 3.5, 10**20, True, False, None])
        if kind < 8:
            return [self.value(depth + 1) for _ in range(self.draw.randrange(4))]
        return {self.draw.choice("abé"): self.value(depth + 1) for _ in range(self.draw.randrange(4))}

    def call(self, number: int) -> dict[str, Any]:
        arguments = self.draw.choice(
            [{}, {"x": 1}, {"q": self.value(), "r": self.value()}, '{"a": 1}', "", {"l": [1, "b", None, True]}]
        )
        function = {"name": self.draw.choice(["find", "go", "a b"]), "arguments": arguments}
        made: dict[str, Any] = {"id": f"call0000{number}", "type": "function", "function": function}
        for key in ("id", "type"):
            if self.chance(0.1):
                del made[key]
        return function if self.chance(0.07) else made

    def content(self) -> Any:
        if self.chance(0.75):
            return self.draw.choice(TEXTS)
        if self.chance(0.3):
            return None
        if self.chance(0.7):
            return [{"type": "text", "text": self.draw.choice(TEXTS)} for _ in range(self.draw.randrange(4))]
        return self.draw.choice([7, 2.5, True, {"a": "b"}, ["x", 1]])

    def message(self, role: str) -> dict[str, Any]:
        made: dict[str, Any] = {"role": role, "content": self.content()}
        if role == "assistant" and self.chance(0.3):
            key = self.draw.choice(["reasoning_content", "thinking", "reasoning"])
            made[key] = self.draw.choice([*TEXTS, None])
        if role == "assistant" and self.chance(0.35):
            calls = [self.call(number) for number in range(1 + self.draw.randrange(3))]
            made["tool_calls"] = self.draw.choice([[], None, calls, calls])
        if role == "tool" and self.chance(0.7):
            made.update(tool_call_id="call00001", name="find")
        if self.chance(0.05):
            del made["content"]
        if self.chance(0.05):
            made["extra"] = self.value()
        return made

    def chat(self) -> list[dict[str, Any]]:
        made = [self.message("system")] if self.chance(0.4) else []
        role = "user"
        for _ in range(1 + self.draw.randrange(7)):
            made.append(self.message(role))
            role = self.draw.choice(NEXT.get(role, ["user"]))
            if self.chance(0.08):
                role = self.draw.choice(["user", "assistant", "tool", "system", "developer"])
        return made

    def tools(self) -> list[dict[str, Any]] | None:
        if self.chance(0.5):
            return None
        made = []
        for number in range(self.draw.randrange(4)):
            properties = {self.draw.choice("abc"): self.draw.choice(SCHEMAS) for _ in range(self.draw.randrange(4))}
            parameters = {"type": "object", "properties": properties, "required": self.draw.choice([[], ["a"]])}
            function = {"name": f"t{number}", "description": self.draw.choice(TEXTS), "parameters": parameters}
            if self.chance(0.1):
                del function["parameters"]
            made.append({"type": "function", "function": function})
        return made

    def kwargs(self) -> dict[str, Any]:
        return self.draw.choice([{}, {"enable_thinking": False}, {"enable_thinking": True}, {"custom": self.value()}])
