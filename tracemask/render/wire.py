"""How renders travel between a process and its template worker. Answers are data: nothing in them is executed."""

from __future__ import annotations

import json
import marshal
import struct
from array import array
from collections.abc import Mapping
from typing import Any

from tracemask.core.errors import RenderError
from tracemask.core.vocab import Origin
from tracemask.render.text import RenderedText, Span

HEADER = struct.Struct("<IIIII")  # kind, bytes of text, bytes of spans, bytes of tags, bytes of extras
RENDERED, REFUSED, DONE = 0, 1, 2
_ORIGINS = tuple(Origin)
_NOTES = ("empty_content", "null_content", "other_content", "other_arguments")


def pack_request(request: Any) -> bytes:
    """A request: only plain JSON types, so that marshal keeps every number and every surrogate exactly."""
    try:
        return marshal.dumps(request)
    except ValueError:
        return marshal.dumps(_plain(request))


def unpack_request(body: bytes) -> Any:
    """The request; only the worker calls this, on bytes of the process that started it."""
    return marshal.loads(body)


def _plain(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (str, int, float, bool):
        return value
    for base in (str, int, float):
        if isinstance(value, base):
            return "".join((value,)) if isinstance(value, str) else base(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise RenderError(
        "TM911",
        what=f"a conversation holds a {kind.__name__}, which is not a JSON value",
        fix="pass strings, numbers, booleans, null, lists and dicts",
    )


def pack_rendered(rendered: RenderedText) -> bytes:
    """The answer of a render."""
    text = rendered.text.encode("utf-8", "surrogatepass")
    tags: dict[tuple[Any, ...], int] = {}
    flat: list[int] = []
    for start, _end, message, *tag in rendered.spans:
        flat += (start, message, tags.setdefault(tuple(tag), len(tags)))
    spans = array("i", flat).tobytes()
    table = json.dumps(list(tags)).encode()
    extras = b""
    notes = [getattr(rendered, name) for name in _NOTES]
    if any(notes) or rendered.generation:
        extras = json.dumps([rendered.generation, notes]).encode()
    return HEADER.pack(RENDERED, len(text), len(spans), len(table), len(extras)) + text + spans + table + extras


def pack_refused(error: RenderError) -> bytes:
    """The answer of a render that failed."""
    body = json.dumps([error.code, error.where, error.what, error.fix]).encode()
    return HEADER.pack(REFUSED, 0, 0, 0, len(body)) + body


def unpack_answer(kind: int, sizes: tuple[int, int, int, int], body: bytes) -> RenderedText | RenderError | None:
    """A RenderedText, the error that the worker met, or None (done). Raises ValueError on anything malformed."""
    text_end = sizes[0]
    spans_end = text_end + sizes[1]
    tags_end = spans_end + sizes[2]
    if kind == REFUSED:
        code, where, what, fix = (str(part) for part in json.loads(body[tags_end:]))
        return RenderError(code, where=where, what=what, fix=fix)
    if kind != RENDERED:
        return None
    text = body[:text_end].decode("utf-8", "surrogatepass")
    tags = [
        (int(source), _ORIGINS[origin], tuple(path), bool(coarse))
        for source, origin, path, coarse in json.loads(body[spans_end:tags_end])
    ]
    flat = array("i")
    flat.frombytes(body[text_end:spans_end])
    starts, messages, indices = flat[0::3], flat[1::3], flat[2::3]
    ends = [*starts[1:], len(text)] if starts else []
    spans = [
        tuple.__new__(Span, (start, end, message, *tags[index]))
        for start, end, message, index in zip(starts, ends, messages, indices, strict=True)
    ]
    generation, notes = json.loads(body[tags_end:]) if sizes[3] else ((), ())
    ranges = tuple((int(first), int(last)) for first, last in generation)
    return RenderedText(
        text, spans, generation=ranges, **{name: tuple(map(int, note)) for name, note in zip(_NOTES, notes)}
    )
