"""docs/reference/recipes.md from the recipe models, tables and presets."""

from __future__ import annotations

import inspect
import json
from typing import Any, get_args

from pydantic import BaseModel

from tracemask.recipe import Recipe
from tracemask.recipe import component as components
from tracemask.recipe import model as models
from tracemask.recipe.explain import estimator_text
from tracemask.recipe.load import preset_names
from tracemask.recipe.model import ESTIMATOR_OPTIONS, EstimatorName
from tracemask.recipe.normalize import NORMALIZERS
from tracemask.recipe.terms import TERMS

SECTIONS: dict[str, type[BaseModel]] = {
    "top level": Recipe,
    "[advantage]": models.AdvantageSpec,
    "[reward]": models.RewardSpec,
    "[reward.length_penalty]": models.LengthPenalty,
    "[reward.soft_overlong]": models.SoftOverlong,
    "[group]": models.GroupSpec,
    "[filters]": models.FilterSpec,
    "[off_policy]": models.OffPolicySpec,
    "[off_policy.ratio_mask]": models.RatioMask,
    "[COMPONENT]": components.Component,
    "[COMPONENT.normalizer]": components.Normalizer,
    "[[COMPONENT.select]]": components.Rule,
    "[COMPONENT.roles.ROLE]": components.RoleWeight,
    "[COMPONENT.mismatch]": components.Mismatch,
}
NESTED = {
    "advantage",
    "reward",
    "group",
    "filters",
    "off_policy",
    "components",
    "length_penalty",
    "soft_overlong",
    "ratio_mask",
}
HEAD = """# Recipes

Generated from the models and presets. `tracemask recipe` lists them, `tracemask recipe NAME` explains one,
`tracemask recipe NAME --toml` is a start for your own. JSON Schema: `schemas/recipe.v1.schema.json`.

The loss is Σ_c coef_c · Σ_t w_c[t] · term_c[t] / Z_c[t]. Every table that is no section below is a component c.
A weight of 0 takes the token out of mask and denominator.
"""


def pages() -> dict[str, str]:
    """The reference of recipes: sections, terms, estimators, normalizers, presets."""
    parts = [HEAD, _sections(), _terms(), _estimators(), _normalizers(), _presets()]
    return {"docs/reference/recipes.md": "\n".join(parts)}


def _sections() -> str:
    out = ["## Fields\n"]
    for title, model in SECTIONS.items():
        doc = inspect.cleandoc(model.__doc__ or "")
        rows = [f"| `{name}` | {_kind(field)} | {_default(field)} |" for name, field in model.model_fields.items()]
        rows = [row for row, name in zip(rows, model.model_fields, strict=True) if name not in NESTED]
        out.append(
            f"### `{title}`\n\n{doc}\n\n| field | type | default |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"
        )
    return "\n".join(out)


def _kind(field: Any) -> str:
    return _type(field.annotation) + (f": {field.description}" if field.description else "")


def _type(annotation: Any) -> str:
    values = get_args(annotation)
    if values and all(isinstance(value, (str, int)) for value in values):
        return " or ".join(f"`{value!r}`".replace("'", '"') for value in values)
    names = [value for value in values if value is not type(None)]
    if len(names) < len(values):
        return " or ".join(_type(value) for value in names)
    return f"`{getattr(annotation, '__name__', str(annotation))}`"


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return "see below"
    return "–" if value is None or value in ([], {}, "") else f"`{json.dumps(value)}`"


def _terms() -> str:
    rows = []
    for name, spec in TERMS.items():
        options = ", ".join(f"{key} = {field.default}" for key, field in spec.options.model_fields.items()) or "–"
        needs = ", ".join(sorted(spec.needs)) or "–"
        rows.append(f"| `{name}` | {spec.formula.replace('|', chr(92) + '|')} | {options} | {needs} | {spec.source} |")
    head = "## Terms\n\n| term | per token, minimised | options | needs | source |\n| --- | --- | --- | --- | --- |\n"
    tail = """

lp = log π(token), o = old log-prob (by default the sampler's), μ = sampler log-prob, r = e^(lp−o), ρ = e^(lp−μ),
p = e^lp, q = e^μ, H = entropy, σ = sigmoid, sg = no gradient. `kl` also needs what it is against.
A term of your own is `module:function`; its options are passed on as they are.
"""
    return head + "\n".join(rows) + tail


def _estimators() -> str:
    rows = [
        f"| `{name}` | {estimator_text(name)} | {', '.join(sorted(ESTIMATOR_OPTIONS.get(name, ()))) or '–'} |"
        for name in get_args(EstimatorName)
    ]
    return "## Advantage estimators\n\n| estimator | value | options |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"


def _normalizers() -> str:
    rows = [f"| `{name}` | {inspect.cleandoc(function.__doc__ or '')} |" for name, function in NORMALIZERS.items()]
    note = "\nN counts the rollouts scheduled in the step, whether or not anything in them is selected.\n"
    return (
        "## Normalizers\n\n| normalizer | the component's sum becomes |\n| --- | --- |\n"
        + "\n".join(rows)
        + "\n"
        + note
    )


def _presets() -> str:
    out = ["## Presets\n"]
    out += [f"### {name}\n\n```\n{Recipe.load(name).explain().strip()}\n```\n" for name in preset_names()]
    return "\n".join(out)
