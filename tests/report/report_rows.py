"""Rows made by hand with the small tokenizer."""

from __future__ import annotations

import numpy as np

from tracemask.core.vocab import Author, Part, Role
from tracemask.render.tokenizer import Tokenizer
from tracemask.store.row import Row


def make_row(tokenizer: Tokenizer, parts: list[tuple[Author, str, bool]], *, index: int = 0, **scalars: object) -> Row:
    """One row from (author, text, sampled) pieces; each piece is its own message."""
    ids, author, message, sampled = [], [], [], []
    for number, (who, text, owned) in enumerate(parts):
        piece = tokenizer.encode(text)
        ids += piece
        author += [int(who)] * len(piece)
        message += [number] * len(piece)
        sampled += [owned] * len(piece)
    length = len(ids)
    logprob = np.full(length, np.nan, np.float32)
    logprob[np.array(sampled, bool)] = -0.5
    columns = {
        "token_ids": np.array(ids, np.int32),
        "author": np.array(author, np.uint8),
        "role": np.full(length, int(Role.USER), np.uint8),
        "part": np.full(length, int(Part.CONTENT), np.uint8),
        "origin": np.zeros(length, np.uint8),
        "message": np.array(message, np.int32),
        "sampled": np.array(sampled, bool),
        "logprob": logprob,
    }
    return Row(index, columns, {"id": f"t/{index}", "trace_id": "t", **scalars})
