"""Reading recipes: presets, TOML files, dicts, prime-rl's tables; every fault names its TOML path. Knows no array."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tracemask.core.errors import RecipeError, UsageError
from tracemask.core.registry import nearest
from tracemask.recipe.component import Component
from tracemask.recipe.model import Recipe
from tracemask.recipe.terms import KlOptions

SECTIONS = tuple(Recipe.model_fields)
PRESETS = "tracemask.recipe.presets"


@cache
def preset_names() -> tuple[str, ...]:
    """Names of the presets, sorted."""
    files = resources.files(PRESETS).iterdir()
    return tuple(sorted(file.name[:-5] for file in files if file.name.endswith(".toml")))


def preset_text(name: str) -> str:
    """The TOML of a preset. Raises UsageError TM902 with the nearest names."""
    if name not in preset_names():
        near = nearest(name, preset_names())
        hint = f"did you mean {near!r}? " if near else ""
        fix = f"{hint}known: {', '.join(preset_names())}; or give a path that ends in .toml"
        raise UsageError("TM902", what=f"unknown recipe {name!r}", fix=fix)
    return resources.files(PRESETS).joinpath(f"{name}.toml").read_text(encoding="utf-8")


def load(source: str | Path | dict[str, Any]) -> Recipe:
    """See `Recipe.load`."""
    if isinstance(source, dict):
        return from_dict(source, where="recipe")
    path = Path(source)
    if path.suffix == ".toml":
        if not path.is_file():
            raise UsageError("TM901", where=str(path), what="no such recipe file", fix="check the path")
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            what = f"not UTF-8 at byte {error.start}"
            raise RecipeError("TM940", where=str(path), what=what, fix="save it as UTF-8") from None
        return from_text(text, where=str(path), name=path.stem)
    return from_text(preset_text(str(source)), where=f"preset {source}", name=str(source))


def from_text(text: str, *, where: str, name: str = "recipe") -> Recipe:
    """A recipe from TOML text; `where` leads every error."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError("TM940", where=where, what=f"not TOML: {error}", fix="correct the line named") from None
    return from_dict(data, where=where, name=name)


def from_dict(data: dict[str, Any], *, where: str, name: str = "recipe") -> Recipe:
    """A recipe from parsed TOML: prime-rl's tables are translated, `extends` merged, other tables become components."""
    from tracemask.recipe import prime_rl

    if prime_rl.recognises(data):
        data = prime_rl.translate(data, where=where)
    data = _components(_extended({"name": name} | data, where=where), where=where)
    try:
        recipe = Recipe.model_validate(data)
    except ValidationError as error:
        raise _located(error, where=where) from None
    _refuse(recipe, where=where)
    return recipe


def _extended(data: dict[str, Any], *, where: str) -> dict[str, Any]:
    base = data.get("extends")
    if base is None:
        return data
    if base not in preset_names():
        near = nearest(str(base), preset_names())
        fix = f"{f'did you mean {near!r}? ' if near else ''}known: {', '.join(preset_names())}"
        raise RecipeError("TM940", where=f"{where}: extends", what=f"{base!r} is not the name of a preset", fix=fix)
    own = {key: value for key, value in data.items() if key != "extends"}
    return _merged(_extended(tomllib.loads(preset_text(base)), where=where), own)


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """`own` over `base`, table by table; a changed term starts from that term's own options, and of the two spellings
    of a selection the one given replaces the other."""
    out = dict(base)
    for one, other in (("select", "roles"), ("roles", "select")):
        if one in own and other not in own:
            out.pop(other, None)
    for key, value in own.items():
        before = out.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            if value.get("term", before.get("term")) != before.get("term"):
                before = {name: item for name, item in before.items() if name != "options"}
            if key == "advantage" and value.get("estimator", before.get("estimator")) != before.get("estimator"):
                before = {name: before[name] for name in ("multiply", "shared") if name in before}
            if key == "normalizer" and value.get("name", before.get("name")) != before.get("name"):
                before = {}
            value = _merged(before, value)
        out[key] = value
    return out


def _components(data: dict[str, Any], *, where: str) -> dict[str, Any]:
    """Tables that are no section move under `components`; anything else unknown is refused with the nearest name."""
    sections = {key: value for key, value in data.items() if key in SECTIONS}
    given = sections.get("components", {})
    if not isinstance(given, dict):
        raise RecipeError("TM940", where=f"{where}: components", what="not a table", fix="write [rl], [ce], …")
    components = dict(given)
    for key, value in data.items():
        if key in SECTIONS:
            continue
        near = nearest(key, SECTIONS)
        if not isinstance(value, dict) or "term" not in value:
            hint = f"did you mean {near!r}? " if near else ""
            what = "unknown field" if not isinstance(value, dict) else "a component without a term"
            fix = f"{hint}sections: {', '.join(SECTIONS)}; any other table is a component and names its term"
            raise RecipeError("TM940", where=f"{where}: {key}", what=what, fix=fix)
        if key in components:
            raise RecipeError("TM940", where=f"{where}: {key}", what="component given twice", fix="keep one")
        components[key] = value
    if not components:
        fix = 'add a table such as [rl] with term = "grpo", or extends = "grpo"'
        raise RecipeError("TM940", where=where, what="a recipe needs at least one component", fix=fix)
    return sections | {"components": components}


def _located(error: ValidationError, *, where: str) -> RecipeError:
    """One RecipeError that lists every fault with its TOML path."""
    faults = []
    for item in error.errors():
        loc = [str(part) for part in item["loc"] if part != "components"]
        message = item["msg"].removeprefix("Value error, ")
        context = item.get("ctx") or {}
        if inner := context.get("problems"):
            known = context["known"]
            faults += [(".".join([*loc, *map(str, one["loc"])]), f"{one['msg']} (known: {known})") for one in inner]
            continue
        if item["type"] == "extra_forbidden":
            message = f"unknown field{_nearest(loc)}"
        faults.append((".".join(loc), message))
    first, *rest = faults
    more = "".join(f"; {path}: {message}" for path, message in rest)
    place = f"{where}: {first[0]}" if first[0] else where
    return RecipeError("TM940", where=place, what=first[1] + more, fix="see schemas/recipe.v1.schema.json")


def _nearest(loc: list[str]) -> str:
    """A hint for an unknown field of a section or a component."""
    model: Any = Recipe
    for part in loc[:-1]:
        field = model.model_fields.get(part)
        model = getattr(field, "annotation", None) if field else Component
        if not hasattr(model, "model_fields"):
            return ""
    near = nearest(loc[-1], model.model_fields)
    return f", did you mean {near!r}?" if near else ""


def _refuse(recipe: Recipe, *, where: str) -> None:
    """Estimators whose gradient is not what their name says are refused unless named `compat`."""
    for name, component in recipe.components.items():
        options = component.options
        if not isinstance(options, KlOptions) or options.compat:
            continue
        if options.clamp is not None:
            field, what = "clamp", "a clamped penalty has gradient 0 exactly where the policies differ most"
            fix = "leave clamp out"
        elif options.estimator == "k1" and not options.through_ratio:
            field, what = "estimator", "k1 as a loss has expected gradient 0 on policy"
            fix = "use k2, or k1 or k3 with through_ratio = true"
        else:
            continue
        fix += "; compat = true reproduces a published run"
        raise RecipeError("TM951", where=f"{where}: {name}.options.{field}", what=what, fix=fix)
