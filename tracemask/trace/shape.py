"""What the objects of a log are known to hold, as data: whatever else is in them is counted. Knows no format.

A Shape maps each known key to the shape of what lies below it, or to None where anything may. Lists are looked
through: the shape of `messages` is that of one message. The key "*" stands for every key that is not named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, cast

Shape: TypeAlias = "Mapping[str, Shape | None]"


def known(names: str, /, **inner: Shape) -> Shape:
    """A shape of the space-separated names, and of those given with what lies below them."""
    return {**dict.fromkeys(names.split()), **inner}


def unfamiliar(value: Any, shape: Shape, path: str = "") -> Iterator[str]:
    """The path of every key of `value` that the shape does not know and that is not null, once an occurrence."""
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            if isinstance(item, dict | list):
                yield from unfamiliar(item, shape, f"{path}[]")
    elif isinstance(value, dict):
        every = "*" in shape
        for key, item in cast("dict[str, Any]", value).items():
            below = shape.get(key, shape.get("*"))
            if key not in shape and not every:
                if item is not None:
                    yield f"{path}.{key}" if path else key
            elif below is not None and isinstance(item, dict | list):
                yield from unfamiliar(item, below, f"{path}.{key}" if path else key)
