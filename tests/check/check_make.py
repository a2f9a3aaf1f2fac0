"""Rows for tests, made from pieces of text, and the defects that are planted in them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tracemask.core.vocab import Author, Origin, Part, Role
from tracemask.render.tokenizer import Tokenizer
from tracemask.store.row import Row

SMALL = Path(__file__).parents[2] / "fixtures" / "tokenizers" / "small"


@dataclass(frozen=True)
class Piece:
    """Text that is encoded on its own, with who wrote it."""

    text: str
    author: Author
    role: Role
    part: Part
    message: int
    control: str = "ids"


def chat(turns: Iterable[tuple[str, str]], *, closed: bool = True) -> list[Piece]:
    """ChatML turns (role, text) with Qwen3's way of tool results; the last reply may lack its stop."""
    out: list[Piece] = []
    who = {"system": Author.HARNESS, "user": Author.TASKSET, "assistant": Author.POLICY, "tool": Author.ENVIRONMENT}
    turns = list(turns)
    pending = ""
    for i, (role, text) in enumerate(turns):
        shown = "user" if role == "tool" else role
        slot = Role[role.upper()]
        out.append(Piece(f"{pending}<|im_start|>{shown}\n", Author.RENDERER, slot, Part.HEADER, i))
        pending = ""
        if role == "assistant":
            out.append(Piece(text, Author.POLICY, slot, Part.CONTENT, i))
            if closed or i < len(turns) - 1:
                out.append(Piece("<|im_end|>", Author.POLICY, slot, Part.STOP, i))
                pending = "\n"
        elif role == "tool":
            out[-1] = Piece(out[-1].text + "<tool_response>\n", Author.RENDERER, slot, Part.HEADER, i)
            out.append(Piece(text, Author.ENVIRONMENT, slot, Part.TOOL_OUTPUT, i, "text"))
            out.append(Piece("\n</tool_response><|im_end|>", Author.RENDERER, slot, Part.SEPARATOR, i))
            pending = "\n"
        else:
            out.append(Piece(text, who[role], slot, Part.CONTENT, i, "text"))
            out.append(Piece("<|im_end|>", Author.RENDERER, slot, Part.STOP, i))
            pending = "\n"
    if pending:
        out.append(Piece(pending, Author.RENDERER, Role.NONE, Part.SEPARATOR, len(turns) - 1))
    return out


def ours(
    tokenizer: Tokenizer, pieces: Iterable[Piece], *, index: int = 0, logprobs: bool = True, **scalars: Any
) -> Row:
    """A row as convert would store it: the policy's pieces are sampled, with log-probs."""
    columns: dict[str, list[Any]] = {name: [] for name in ("token_ids", "author", "role", "part", "message")}
    for piece in pieces:
        ids = (
            tokenizer.encode(piece.text, control="ids")
            if piece.control == "ids"
            else tokenizer.plain_batch([piece.text])[0]
        )
        columns["token_ids"] += ids
        for name, value in (
            ("author", piece.author),
            ("role", piece.role),
            ("part", piece.part),
            ("message", piece.message),
        ):
            columns[name] += [int(value)] * len(ids)
    arrays = {
        "token_ids": np.array(columns["token_ids"], dtype=np.int32),
        "author": np.array(columns["author"], dtype=np.uint8),
        "role": np.array(columns["role"], dtype=np.uint8),
        "part": np.array(columns["part"], dtype=np.uint8),
        "message": np.array(columns["message"], dtype=np.int32),
    }
    policy = arrays["author"] == Author.POLICY
    arrays["origin"] = np.where(arrays["author"] == Author.RENDERER, Origin.RENDERER, Origin.CONTENT).astype(np.uint8)
    arrays["sampled"] = policy
    noise = np.random.default_rng(index).uniform(-4, -0.01, len(policy)).astype(np.float32)
    arrays["logprob"] = np.where(policy & logprobs, noise, np.nan).astype(np.float32)
    facts: dict[str, Any] = {
        "id": f"t{index}/0", "trace_id": f"t{index}", "branch": 0, "fidelity": "completion", "truncated": False,
        "trainable": True, "fork_row": None, "fork_position": None, "reward": None, "group_id": None,
    }  # fmt: skip
    return Row(index, arrays, {**facts, **scalars})


def foreign(row: Row, *, labels: bool = False, logprobs: bool = False, **scalars: Any) -> Row:
    """The same tokens as another tool would store them: ids with labels or a mask, no authors."""
    columns = {"token_ids": row["token_ids"]}
    sampled = row["sampled"]
    if labels:
        columns["labels"] = np.where(sampled, row["token_ids"], -100).astype(np.int64)
    else:
        columns["mask"] = sampled.astype(np.int64)
    if logprobs:
        columns["logprob"] = row["logprob"]
    return Row(row.index, columns, dict(scalars))


def changed(row: Row, **columns: np.ndarray) -> Row:
    """The row with some columns replaced (None: left out)."""
    merged = {**row.columns, **columns}
    return Row(row.index, {name: values for name, values in merged.items() if values is not None}, dict(row.scalars))


class Rows(list):
    """Rows that say of which kind of dataset they are."""

    kind = "tracemask"
    metadata: dict[str, Any] = {}

    def row(self, i: int) -> Row:
        return self[i]


class Foreign(Rows):
    kind = "foreign"


TALK = [
    ("system", "You keep the ferry timetable."),
    ("user", "When does the Orla leave Pier 4?"),
    ("assistant", '<think>\nI should look at the board.\n</think>\n\n<tool_call>\n{"name": "board"}\n</tool_call>'),
    ("tool", "Orla 07:40 delayed"),
    ("assistant", "<think>\nThe board says 07:40.\n</think>\n\nShe leaves at 07:40, delayed."),
]
