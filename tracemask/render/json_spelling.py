"""The tojson filter as transformers defines it, with provenance. Knows no template."""

from __future__ import annotations

import json
from typing import Any

from tracemask.render.fields import Flag, Items, Null, Record
from tracemask.render.provenance import Text, cat, plain, tagged
from tracemask.render.spelling import SCALARS, escaped_text, is_one_field
from tracemask.render.tags import LimitExceeded, Tag

MAX_INDENT = 64


def json_text(
    value: Any,
    ensure_ascii: Any = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: Any = False,
) -> str:
    """The tojson filter as transformers defines it; keys, values and punctuation of a field belong to the field."""
    _check_indent(indent)
    options = {
        "ensure_ascii": ensure_ascii,
        "indent": plain(indent) if isinstance(indent, str) else indent,
        "separators": tuple(plain(each) for each in separators) if separators else separators,
        "sort_keys": sort_keys,
    }
    kind = type(value)
    if is_one_field(value):
        return _of_one_field(value, options)
    if kind is str:
        return json.dumps(value, **options)
    if kind is Text and len(value._runs) == 1:
        return tagged(json.dumps(value, **options), value._runs[0][1])
    if not _holds_field(value):
        return json.dumps(value, **options)
    return cat(_json_parts(value, options, 0))


_COMPACT = {"ensure_ascii": False, "indent": None, "separators": None, "sort_keys": False}


def _of_one_field(value: Any, options: dict[str, Any]) -> str:
    """A container of one field; how the usual options spell it is kept, because a batch's traces share their tools."""
    if options != _COMPACT:
        return tagged(json.dumps(value._raw, **options), value._tag)
    kept = getattr(value, "_json", None)
    if kept is None:
        kept = value._json = tagged(json.dumps(value._raw, **options), value._tag)
    return kept


def _check_indent(indent: Any) -> None:
    if (isinstance(indent, int) and indent > MAX_INDENT) or (isinstance(indent, str) and len(indent) > MAX_INDENT):
        raise LimitExceeded(f"a JSON indent of more than {MAX_INDENT}")


def _holds_field(value: Any) -> bool:
    if isinstance(value, (Text, Record, Items, *SCALARS)):
        return True
    if isinstance(value, dict):
        return any(_holds_field(key) or _holds_field(item) for key, item in value.items())
    return isinstance(value, (list, tuple)) and any(_holds_field(item) for item in value)


def _json_parts(value: Any, options: dict[str, Any], depth: int) -> list[str]:
    """The pieces of a container that the template built around fields."""
    if isinstance(value, Text):
        encode = json.encoder.encode_basestring_ascii if options["ensure_ascii"] else json.encoder.encode_basestring
        return [escaped_text(value, encode(value), lambda part: encode(part)[1:-1])]
    if is_one_field(value) and (options["indent"] is None or not value):
        return [tagged(json.dumps(value._raw, **options), value._tag)]
    if isinstance(value, SCALARS):
        return [tagged(json.dumps(_raw(value), **options), value._tag)]
    if not isinstance(value, (dict, list, tuple)):
        return [json.dumps(value, **options)]
    tag = value._tag if isinstance(value, (Record, Items)) else None
    return _json_container(value, options, depth, tag)


def _raw(value: Any) -> Any:
    return None if isinstance(value, Null) else bool(value) if isinstance(value, Flag) else value


def _json_container(value: Any, options: dict[str, Any], depth: int, tag: Tag | None) -> list[str]:
    indent = options["indent"]
    step = " " * indent if isinstance(indent, int) else indent
    item_mark, key_mark = options["separators"] or ((",", ": ") if indent is not None else (", ", ": "))
    opening, closing = ("{", "}") if isinstance(value, dict) else ("[", "]")
    if not value:
        return [_mark(opening + closing, tag)]
    line = "" if step is None else "\n" + step * (depth + 1)
    last = "" if step is None else "\n" + step * depth
    out = [_mark(opening + line, tag)]
    pairs = (sorted(value.items()) if options["sort_keys"] else value.items()) if isinstance(value, dict) else None
    for index, entry in enumerate(pairs if pairs is not None else value):
        if index:
            out.append(_mark(item_mark + line, tag))
        if pairs is not None:
            key, entry = entry
            out += _json_key(key, options) if isinstance(key, Text) else [_mark(_json_key(key, options)[0], tag)]
            out.append(_mark(key_mark, tag))
        out += _json_parts(entry, options, depth + 1)
    out.append(_mark(last + closing, tag))
    return out


def _json_key(key: Any, options: dict[str, Any]) -> list[str]:
    if isinstance(key, str):
        return _json_parts(key, options, 0)
    return [json.dumps({key: 0}, ensure_ascii=options["ensure_ascii"])[1:-4]]


def _mark(text: str, tag: Tag | None) -> str:
    return text if tag is None else tagged(text, tag)
