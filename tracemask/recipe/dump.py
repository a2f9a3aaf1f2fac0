"""A recipe back to TOML: only what differs from the defaults, sections first. Knows the recipe, no data."""

from __future__ import annotations

import json
import re
from typing import Any

from tracemask.recipe.model import Recipe

_UNPRINTED = re.compile("[\x7f-\x9f]")  # json.dumps leaves them as they are, TOML and terminals must not see them


def to_toml(recipe: Recipe) -> str:
    """TOML whose `Recipe.load` gives an equal recipe. Components are tables at the top level."""
    data = recipe.model_dump(mode="json", exclude_defaults=True)
    components = data.pop("components")
    for name, component in recipe.components.items():
        components[name] = {"term": component.term} | components[name]
        options = component.options.model_dump(mode="json", exclude_none=True)
        components[name].pop("options", None)
        if options:
            components[name]["options"] = options
        if component.normalizer.model_fields_set <= {"name"}:
            components[name]["normalizer"] = component.normalizer.name
        else:
            components[name]["normalizer"] = component.normalizer.model_dump(mode="json", exclude_defaults=True) | {
                "name": component.normalizer.name
            }
        if component.mismatch is not None:
            components[name]["mismatch"] = component.mismatch.model_dump(mode="json", exclude_none=True)
        if component.roles:
            components[name]["roles"] = {role: weight.model_dump() for role, weight in component.roles.items()}
    lines = _table(data | components, ())
    return "\n".join(lines).strip() + "\n"


def _table(data: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    """Plain values first, then sub-tables, each under its header."""
    plain = {key: value for key, value in data.items() if not isinstance(value, dict)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in plain.items()]
    if lines and path:
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for key, value in data.items():
        if isinstance(value, dict):
            lines += _table(value, (*path, key))
    return lines


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, float):
        return repr(value)
    return _UNPRINTED.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))


def _key(name: str) -> str:
    """A key as TOML writes it: bare where that is allowed, else quoted, so that a dot in a name opens no table."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)
