"""One loss component: term, coefficient, options, mismatch weight. Turns log-probs into weighted derivatives.

Reads a recipe's components as data (name → term, coef, options, mismatch). Never decides whose tokens are trained.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tracemask.core.errors import LossError, UsageError
from tracemask.core.registry import Table
from tracemask.loss.mismatch import MismatchWeight, mismatch_weight
from tracemask.loss.numerics import EXPONENT_CAP
from tracemask.loss.terms import Level, Term, TermInputs, TermResult

TERMS: Table[Term] = Table(
    "loss term",
    reinforce="tracemask.loss.policy:reinforce",
    importance_sampling="tracemask.loss.policy:importance_sampling",
    ppo="tracemask.loss.policy:ppo",
    grpo="tracemask.loss.policy:ppo",
    dr_grpo="tracemask.loss.policy:ppo",
    gspo="tracemask.loss.policy:gspo",
    cispo="tracemask.loss.policy:cispo",
    dppo="tracemask.loss.policy:dppo",
    sapo="tracemask.loss.policy:sapo",
    ref_kl="tracemask.loss.policy:ref_kl",
    ce="tracemask.loss.policy:ce",
    kl="tracemask.loss.kl:kl",
    entropy="tracemask.loss.policy:entropy",
)


def find_term(name: str) -> Term:
    """The term of that name, or the user's own given as "package.module:function".

    Own functions take (lp[N], TermInputs, **options) and return a TermResult; decorate them with `terms.term` to
    declare needs or sequence level. Raises UsageError TM902 for an unknown name.
    """
    if ":" not in name:
        return TERMS[name]
    module, _, attribute = name.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise UsageError("TM902", what=f"cannot import term {name!r}: {error}", fix="give module:function") from error
    return found if isinstance(found, Term) else Term(found)


@dataclass(frozen=True)
class Component:
    """One entry of the loss: coef · Σ weight · term / denominator.

    cap: exponents above it continue linearly. after_rejection: the denominator counts the targets that no importance or
    trust-region mask rejects, which only a log-prob pass can tell.
    """

    name: str
    term: Term
    coef: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    mismatch: Mapping[str, Any] | None = None
    cap: float = EXPONENT_CAP
    after_rejection: bool = False

    @property
    def level(self) -> Level:
        """SEQUENCE where one token's derivative depends on the whole rollout."""
        spread = self.mismatch is not None and self.mismatch.get("level", "token") != "token"
        return Level.SEQUENCE if spread else self.term.level

    @property
    def needs(self) -> frozenset[str]:
        """advantage, old, sampler, ref, entropy: the arrays that the term and its mismatch weight read."""
        needs = set(self.term.needs)
        if "against" in self.term.options:
            needs.add(self.options.get("against", self.term.options["against"]))
            if self.options.get("through_ratio"):
                needs.add("old")
        return frozenset(needs | {"sampler", "old"} if self.mismatch is not None else needs)

    @property
    def trains_entropy(self) -> bool:
        """Whether the derivative in the entropy is needed."""
        return "entropy" in self.term.needs

    def __call__(self, lp: Tensor, given: TermInputs, *, separate_old: bool) -> TermResult:
        """The term with its mismatch weight applied. lp [N]; separate_old: old is not just the sampler's copy."""
        if self.mismatch is None:
            return self.term(lp, given, **self.options)
        if not separate_old:
            given = given.without_old(lp)
        weight = mismatch_weight(given, **self.mismatch)
        return _weighted(self.term(lp, given, **self.options), weight)


def _weighted(result: TermResult, mismatch: MismatchWeight) -> TermResult:
    factor = mismatch.weight
    stats = dict(result.stats) | {
        "mismatch_weight": factor,
        "rejected": mismatch.rejected,
        "truncated": mismatch.truncated,
    }
    bend = None if result.entropy_slope is None else result.entropy_slope * factor
    return replace(result, loss=result.loss * factor, slope=result.slope * factor, entropy_slope=bend, stats=stats)


def resolve(recipe: Any) -> Any:
    """A recipe object as it is; a name, path or dict is loaded."""
    if isinstance(recipe, str | Path | dict):
        from tracemask.recipe import Recipe

        return Recipe.load(recipe)
    return recipe


def components_of(recipe: Any) -> tuple[Component, ...]:
    """The components of a recipe: its name, path or dict, a Recipe, or anything whose `components` maps names to
    objects with term, coef, options (model or mapping) and mismatch (model, mapping or None).

    Raises UsageError TM902 for an unknown term and TM900 for an option that a term does not have.
    """
    recipe = resolve(recipe)
    found = []
    for name, entry in recipe.components.items():
        component = Component(
            name,
            find_term(entry.term),
            float(entry.coef),
            _mapping(getattr(entry, "options", None)),
            _mapping(getattr(entry, "mismatch", None)) or None,
            float(getattr(recipe, "exponent_cap", EXPONENT_CAP)),
            getattr(getattr(entry, "normalizer", None), "count", None) == "after_rejection",
        )
        component.term.check_options(component.options, where=f"components.{name}")
        found.append(component)
    if not found:
        raise LossError("TM940", what="the recipe has no loss component", fix="add one, e.g. [components.rl]")
    return tuple(found)


def _mapping(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else dict(value.model_dump())


@torch.no_grad()
def restrict(given: TermInputs, keep: Tensor) -> TermInputs:
    """`given` for the targets in keep [N]: elsewhere every array becomes 0 before any function sees it."""
    clean = {
        name: None if getattr(given, name) is None else torch.where(keep, getattr(given, name), 0)
        for name in ("advantage", "old", "sampler", "ref", "entropy")
    }
    return replace(given, keep=keep, **clean)
