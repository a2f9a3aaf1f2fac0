"""Jinja's filters where the stock ones would lose provenance or bounds; the rest stay stock, or are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from jinja2 import pass_context, pass_environment
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.runtime import Undefined

from tracemask.render.fields import number
from tracemask.render.formatting import printf
from tracemask.render.json_spelling import json_text
from tracemask.render.markup import Safe, escaped, mark_safe
from tracemask.render.provenance import Text, cat, literal, make, mapped, plain, runs_of, tag_of, tagged
from tracemask.render.provenance import join as join_text
from tracemask.render.spelling import text_of
from tracemask.render.tags import LimitExceeded, Untraceable, check_width, coarse

MAX_LIST = 100_000
REFUSED = ("random", "striptags", "urlize", "wordwrap", "xmlattr")


def refused(name: str) -> Callable[..., Any]:
    """A filter that names itself and stops."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise Untraceable(f"the filter {name}")

    return refuse


def as_text(value: Any) -> Text:
    """Any value as Text, so that its methods keep the provenance of their arguments."""
    text = as_string(value)
    return text if isinstance(text, Text) else literal(text)


def trim(value: Any, chars: str | None = None) -> str:
    """`trim`."""
    text = text_of(value).strip(chars)
    return mark_safe(text) if isinstance(value, Safe) else text


def as_string(value: Any) -> str:
    """`string`: a string stays what it is."""
    return value if isinstance(value, str) else text_of(value)


@pass_environment
def joined(environment: Any, value: Iterable[Any], d: Any = "", attribute: Any = None) -> str:
    """`join`."""
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return join_text(text_of(d), [text_of(item) for item in value])


def replaced(s: Any, old: Any, new: Any, count: Any = None) -> str:
    """`replace`."""
    return as_text(s).replace(text_of(old), text_of(new), -1 if count is None else count)


def indented(s: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
    """`indent`."""
    margin = width if isinstance(width, str) else " " * check_width(width)
    text = cat((text_of(s), "\n"))
    lines = text.splitlines()
    if blank:
        body = join_text(cat(("\n", margin)), lines)
    else:
        rest = [cat((margin, line)) if line else line for line in lines[1:]]
        body = join_text("\n", [lines[0], *rest])
    return cat((margin, body)) if first else body


def titled(s: Any) -> str:
    """`title`: Jinja's own, which differs from str.title."""
    return changed(s, FILTERS["title"], "the filter title")


def changed(value: Any, change: Callable[[str], str], name: str) -> str:
    """A letter-by-letter change of a text."""
    if isinstance(value, Safe):
        raise Untraceable(f"{name} of the safe filter's result")
    text = text_of(value)
    return mapped(text, change, name) if isinstance(text, Text) else change(text)


def centered(value: Any, width: Any = 80) -> str:
    """`center`."""
    return as_text(value).center(width)


def formatted(value: Any, *args: Any, **kwargs: Any) -> str:
    """`format`: printf with the filter's arguments."""
    if args and kwargs:
        raise TypeError("can't handle positional and keyword arguments at the same time")
    return printf(text_of(value), kwargs or args)


def computed(name: str) -> Callable[..., Any]:
    """A stock filter whose result is a number or text computed from a field: the field's, coarse."""
    stock = FILTERS[name]

    def compute(value: Any, *args: Any, **kwargs: Any) -> Any:
        result = stock(value, *args, **kwargs)
        tag = coarse(tag_of(value))
        if tag is None or result is value:
            return result
        if isinstance(result, str):
            return tagged(plain(result), tag)
        return number(result, tag) if isinstance(result, (int, float)) else result

    return compute


def url_encoded(value: Any) -> str:
    """`urlencode` of a string; of a mapping it is refused."""
    if not isinstance(value, str):
        raise Untraceable("the filter urlencode on a container")
    return changed(value, lambda part: quote(part, safe=b"/"), "urlencode")


def pretty(value: Any) -> str:
    """`pprint`."""
    if isinstance(value, Safe):
        raise Untraceable("the filter pprint of the safe filter's result")
    tag = coarse(tag_of(value))
    single = len(runs_of(value)) == 1 if isinstance(value, str) else tag is not None or isinstance(value, (int, float))
    if not single:
        raise Untraceable("the filter pprint on what has more than one origin")
    result = FILTERS["pprint"](value)
    return result if tag is None else tagged(result, tag)


def batched(value: Iterable[Any], linecount: Any, fill_with: Any = None) -> Iterator[Any]:
    """`batch`."""
    _check_count(linecount)
    return FILTERS["batch"](value, linecount, fill_with)


def sliced(value: Any, slices: Any, fill_with: Any = None) -> Iterator[Any]:
    """`slice`."""
    _check_count(slices)
    return sync_slice(list(value), slices, fill_with)


def sync_slice(items: list[Any], slices: int, fill_with: Any) -> Iterator[Any]:
    """`slices` columns of nearly equal length, the longer ones first."""
    size, longer = divmod(len(items), slices)
    start = 0
    for column in range(slices):
        end = start + size + (1 if column < longer else 0)
        part = items[start:end]
        if fill_with is not None and column >= longer:
            part.append(fill_with)
        yield part
        start = end


def _check_count(count: Any) -> None:
    if isinstance(count, int) and count > MAX_LIST:
        raise LimitExceeded(f"more than {MAX_LIST} columns")


@pass_context
def listed(context: Any, value: Any) -> list[Any]:
    """`list`."""
    items = [*value]
    context.progress.spend(len(items))
    return items


def shortened(s: Any, length: int = 255, killwords: bool = False, end: str = "...", leeway: int = 5) -> str:
    """`truncate`."""
    text = as_text(s)
    if length < len(end) or leeway < 0:
        raise ValueError(f"expected length >= {len(end)} and leeway >= 0, got {length} and {leeway}")
    if len(text) <= length + leeway:
        return text
    kept = text[: length - len(end)]
    if not killwords:
        kept = as_text(kept).rsplit(" ", 1)[0]
    return cat((kept, end))


def tojson(
    value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, sort_keys: Any = False
) -> str:
    """`tojson` with transformers' signature; an undefined value is refused as json refuses it."""
    if isinstance(value, Undefined):
        raise TypeError("Object of type Undefined is not JSON serializable")
    return json_text(value, ensure_ascii, indent, separators, sort_keys)


def tracing_filters() -> dict[str, Callable[..., Any]]:
    """Every filter of the environment by name."""
    table: dict[str, Callable[..., Any]] = dict(FILTERS)
    table.update({name: refused(name) for name in REFUSED})
    table.update({name: computed(name) for name in ("abs", "filesizeformat", "float", "int", "round")})
    table.update(
        batch=batched,
        capitalize=lambda s: changed(s, str.capitalize, "capitalize"),
        center=centered,
        e=lambda value: escaped(text_of(value)),
        escape=lambda value: escaped(text_of(value)),
        forceescape=lambda value: escaped(as_plain_text(value)),
        format=formatted,
        indent=indented,
        join=joined,
        list=listed,
        lower=lambda s: changed(s, str.lower, "lower"),
        pprint=pretty,
        replace=replaced,
        safe=lambda value: mark_safe(text_of(value)),
        slice=sliced,
        string=as_string,
        title=titled,
        tojson=tojson,
        trim=trim,
        truncate=shortened,
        upper=lambda s: changed(s, str.upper, "upper"),
        urlencode=url_encoded,
    )
    return table


def as_plain_text(value: Any) -> str:
    """The text of a value without a safe mark."""
    text = text_of(value)
    return make(plain(text), runs_of(text)) if isinstance(text, Text) else text
