"""A recipe in words: formula, mask, denominator, advantage, defaults, source. Knows the recipe, no data."""

from __future__ import annotations

import textwrap
from typing import Any

from pydantic import BaseModel

from tracemask.recipe.component import Component, Mismatch, Rule
from tracemask.recipe.estimators import OVER_ALL, PER_GROUP
from tracemask.recipe.model import ESTIMATOR_OPTIONS, Recipe
from tracemask.recipe.normalize import NORMALIZERS
from tracemask.recipe.terms import term_spec

SYMBOLS = (
    "lp = log π(token)   o = old log-prob, by default the sampler's   μ = sampler log-prob   r = e^(lp−o)",
    "ρ = e^(lp−μ)   p = e^lp   q = e^μ   H = entropy   σ = sigmoid",
    "A = advantage   N = rollouts scheduled   L_i = counted tokens of rollout i   sg = no gradient",
)
OTHER_ESTIMATORS = {
    "none": "not used",
    "given": "A is the scalar column advantage, per rollout.",
    "per_token": "A is the per-token column advantage (a critic's).",
    "gae": "GAE over the policy's tokens, observations skipped, from the per-token column value.",
    "reward_to_go": "A_t = Σ γ^(k−t) r_k over the policy's tokens from t on.",
}


def explain(recipe: Recipe) -> str:
    """The explanation as plain text, at most 110 columns."""
    parts = " + ".join(_coefficient(component) + name for name, component in recipe.components.items())
    lines = [f"{recipe.name}: {recipe.summary}" if recipe.summary else recipe.name]
    if recipe.source:
        lines.append(f"source: {recipe.source}")
    lines += ["", f"loss = {parts.replace('+ −', '− ')}", *SYMBOLS]
    for name, component in recipe.components.items():
        lines += ["", *_component(name, component)]
    lines += ["", *_advantage(recipe), *_rest(recipe)]
    return "\n".join(_wrapped(line) for line in lines) + "\n"


def estimator_text(name: str) -> str:
    """What an estimator computes, in one line."""
    table: Any = PER_GROUP if name in PER_GROUP else OVER_ALL
    return OTHER_ESTIMATORS.get(name) or _first(table[name].__doc__)


def denominator_text(component: Component) -> str:
    """What a component is divided by, in one line."""
    spec = component.normalizer
    text = f"{spec.effective}: {_first(NORMALIZERS[spec.effective].__doc__)}"
    if spec.length is not None:
        text += f" L_max = {spec.length}."
    if spec.count == "all_observations":
        text += " Counted: every observation token, selected or not."
    if spec.count == "after_rejection":
        text += " Counted: tokens that clip and importance masks keep, after a log-prob pass."
    if spec.empty == "leave_out":
        text += " N counts rollouts with something counted."
    return text


def mask_text(component: Component) -> list[str]:
    """Whose tokens a component weighs, one line a rule."""
    lines = [_rule(rule) for rule in component.rules]
    if component.rows:
        lines.append("rows with " + ", ".join(f"{key} in {'|'.join(value)}" for key, value in component.rows.items()))
    lines += [f"without text matching /{pattern}/" for pattern in component.drop]
    return lines


def _component(name: str, component: Component) -> list[str]:
    spec = term_spec(component.term)
    lines = [
        f"{name} = {_coefficient(component)}Σ_t w_t · term_t / Z_t",
        f"  term         {component.term}: {spec.formula}",
        *([f"  options      {_options(component.options)}"] if type(component.options).model_fields else []),
        *(f"  {'mask' if at == 0 else '':<13}{line}" for at, line in enumerate(mask_text(component))),
        f"  denominator  {denominator_text(component)}",
    ]
    if component.mismatch is not None:
        lines += _mismatch(component.mismatch)
    if component.zero_advantage == "drop":
        lines.append("  zero A       tokens with advantage exactly 0 leave mask and count")
    if component.needs:
        lines.append(f"  needs        {', '.join(sorted(component.needs))}")
    return [*lines, f"  source       {spec.source}"]


_LOG_RATIOS = {
    "token": "the token's own",
    "sum": "the sum over the rollout",
    "mean": "the mean over the rollout",
    "max": "the token's own, kept by the rollout's extremes",
}


def _mismatch(spec: Mismatch) -> list[str]:
    """The factor on the term, as it is computed."""
    if spec.kind == "tis":
        factor = f"min(ρ̄, {spec.high:g})"
    else:
        factor = f"ρ̄ inside [{spec.low or 0:g}, {spec.high:g}], 0 outside"
    return [
        f"  mismatch     {spec.kind}: times sg({factor}), ρ̄ = e^x, x = o − μ: {_LOG_RATIOS[spec.level]}",
        "               where no o is recorded, it is the current policy: r is 1 and keeps its gradient",
    ]


def _advantage(recipe: Recipe) -> list[str]:
    spec = recipe.advantage
    if "advantage" not in recipe.needs:
        return []
    lines = [f"advantage {spec.estimator}: {estimator_text(spec.estimator)}"]
    shown = {name: value for name, value in spec.model_dump().items() if _matters(recipe, name, value)}
    if shown:
        lines.append("  options      " + _pairs(shown))
    if spec.estimator in PER_GROUP:
        by = recipe.group.by or "group_id, else task_id"
        lines.append(f"  groups       by {by}; uniform groups and groups of one get exactly 0")
    if recipe.reward.length_penalty is not None:
        lines.append(f"  penalty      linear, before the baseline: {_options(recipe.reward.length_penalty)}")
    if recipe.reward.soft_overlong is not None:
        lines.append(f"  overlong     {_options(recipe.reward.soft_overlong)}")
    lines.append(f"  no reward    {'an error' if recipe.reward.missing == 'error' else 'left out and counted (TM603)'}")
    return lines


def _matters(recipe: Recipe, name: str, value: Any) -> bool:
    spec = recipe.advantage
    if name in ESTIMATOR_OPTIONS.get(spec.estimator, ()):
        return spec.whiten == "batch" or spec.estimator in ("group_mean_std", "batch") or name not in ("ddof", "eps")
    return name in ("multiply", "shared") and value not in (1.0, "owner")


def _rest(recipe: Recipe) -> list[str]:
    lines = []
    if recipe.filters.truncated == "mask":
        lines.append("filters: rollouts cut at the limit leave the policy terms; N keeps them")
    if recipe.filters.max_tokens is not None:
        lines.append(
            f"filters: rollouts of more than {recipe.filters.max_tokens} sampled tokens leave the policy terms"
        )
    off = recipe.off_policy
    if off.max_staleness is not None:
        lines.append(f"off-policy: tokens more than {off.max_staleness} versions old are {_past(off.on_stale)}")
    if off.ratio_mask is not None:
        lines.append(f"off-policy: masked where old/sampler leaves the band: {_options(off.ratio_mask)}")
    if recipe.allow_messages:
        lines.append("allow_messages: policy terms also train on re-encoded text, which nobody sampled")
    return lines + [f"note: {note}" for note in recipe.notes]


def _past(action: str) -> str:
    return {"mask": "masked", "error": "an error"}[action]


def _rule(rule: Rule) -> str:
    words = []
    if rule.sampled:
        words.append("tokens the policy sampled and this row owns")
    if rule.authors:
        words.append("written by " + "|".join(rule.authors))
    if rule.roles:
        words.append("in " + "|".join(rule.roles) + " messages")
    if rule.parts:
        words.append("parts " + "|".join(rule.parts))
    if rule.after_reply:
        words.append("after the policy's first token")
    return f"w = {rule.weight:g}: " + (", ".join(words) or "every owned token")


def _coefficient(component: Component) -> str:
    return "" if component.coef == 1 else f"{component.coef:g}·".replace("-", "−")


def _options(options: BaseModel) -> str:
    defaults = {name: field.default for name, field in type(options).model_fields.items()}
    values = options.model_dump()
    return _pairs(values, {name for name, value in values.items() if value == defaults.get(name)})


def _pairs(values: dict[str, Any], default: set[str] | frozenset[str] = frozenset()) -> str:
    shown = {name: "off" if value is None or value is False else value for name, value in values.items()}
    return " · ".join(f"{name} {value}{' (default)' if name in default else ''}" for name, value in shown.items())


def _first(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split())


def _wrapped(line: str) -> str:
    if len(line) <= 110 or line in SYMBOLS:
        return line
    indent = " " * 15 if line.startswith("  ") else "  "
    return textwrap.fill(line, 110, subsequent_indent=indent, break_on_hyphens=False)
