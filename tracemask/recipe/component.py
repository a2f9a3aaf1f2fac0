"""One loss component as the recipe writes it: term, coefficient, normalizer, whose tokens. Knows no array."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from tracemask.core.errors import UsageError
from tracemask.recipe.terms import NoOptions, TermOptions, TermSpec, needs_of, term_spec

AuthorName = Literal["renderer", "policy", "model", "environment", "taskset", "harness", "verifier", "user"]
RoleName = Literal["none", "system", "developer", "user", "assistant", "tool"]
PartName = Literal["header", "reasoning", "content", "tool_call", "tool_output", "stop", "separator", "bos"]
NormalizerName = Literal["token_mean", "sequence_mean", "constant", "sum_per_rollout", "prompt_mean", "sum"]

BODY: tuple[PartName, ...] = ("content", "tool_output", "reasoning", "tool_call")
OTHERS: tuple[AuthorName, ...] = tuple(name for name in get_args(AuthorName) if name not in ("policy", "renderer"))


class Strict(BaseModel):
    """A section of a recipe: immutable, unknown keys refused, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def _single(value: float) -> float:
    """Weights are float32 in rows and losses: what that cannot hold would train nothing, or everything."""
    smallest, largest = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127
    if value and not smallest <= abs(value) <= largest:
        raise ValueError(f"{value:g} is no float32 (absolute {smallest:.3g} to {largest:.3g})")
    return value


Weight = Annotated[float, AfterValidator(_single)]


class Rule(Strict):
    """Tokens and their weight. A field left out matches everything; the first matching rule of a component decides.

    Only tokens that the row owns match: a shared prefix is trained once. `after_reply` leaves out what stands before
    the policy's first token of the row (the task's own prompt).
    """

    weight: Weight = 1.0
    sampled: bool | None = None
    authors: list[AuthorName] | None = Field(default=None, min_length=1)
    roles: list[RoleName] | None = Field(default=None, min_length=1)
    parts: list[PartName] | None = Field(default=None, min_length=1)
    after_reply: bool = False


class RoleWeight(Strict):
    """prime-rl's spelling of a rule: bodies of one role's messages that the policy did not write, after its reply."""

    alpha: Weight = Field(default=0.1, gt=0)


class Normalizer(Strict):
    """How a component's denominator is counted.

    count: tokens with weight ≠ 0; every observation token of the rollout; or those that the term did not reject (clip
    and importance masks), which the loss knows only after a log-prob pass of its own. length: L_max of `constant`.
    empty: rollouts in which nothing is counted stay in N, or are left out (`sequence_mean` alone).
    """

    name: NormalizerName = "token_mean"
    count: Literal["selected", "all_observations", "after_rejection"] = "selected"
    scope: Literal["step", "sequence"] | None = None
    length: int | None = Field(default=None, ge=1)
    empty: Literal["keep", "leave_out"] = "keep"

    @model_validator(mode="after")
    def _consistent(self) -> Normalizer:
        if self.name == "constant" and self.length is None:
            raise ValueError('normalizer "constant" needs length (L_max, your generation limit in tokens)')
        if self.name != "constant" and self.length is not None:
            raise ValueError(f'length belongs to normalizer "constant", not to {self.name!r}')
        if self.empty == "leave_out" and self.name != "sequence_mean" and self.scope != "sequence":
            raise ValueError('empty = "leave_out" is an option of "sequence_mean" alone')
        if self.count == "all_observations" and self.name not in ("token_mean", "sequence_mean"):
            raise ValueError('count = "all_observations" belongs to "token_mean" or "sequence_mean"')
        if self.count == "after_rejection" and self.effective != "token_mean":
            raise ValueError('count = "after_rejection" belongs to "token_mean" over the step')
        if self.scope is not None and self.name not in ("token_mean", "sequence_mean"):
            raise ValueError(f"normalizer {self.name!r} has a fixed scope; leave scope out")
        if self.name == "sequence_mean" and self.scope == "step":
            raise ValueError('"sequence_mean" over the step is "token_mean"; name that instead')
        return self

    @property
    def effective(self) -> NormalizerName:
        """The normalizer that is computed: `token_mean` with scope "sequence" is `sequence_mean`."""
        return "sequence_mean" if self.scope == "sequence" else self.name


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


MISMATCH_DEFAULTS: dict[str, dict[str, Any]] = {
    "tis": {"level": "token", "low": None, "high": 2.0},
    "mis": {"level": "mean", "low": 0.5, "high": 2.0},
    "icepop": {"level": "token", "low": 0.5, "high": 5.0},
}


class Mismatch(Strict):
    """A weight that corrects the gap between the sampler's engine and the trainer, on any policy term.

    tis truncates the ratio at `high`; mis and icepop give 0 outside [low, high]. level: one token's ratio, or the
    rollout's sum, mean or largest log-ratio.
    """

    kind: Literal["tis", "mis", "icepop"]
    level: Literal["token", "sum", "mean", "max"] = "token"
    low: float | None = Field(default=None, ge=0)
    high: float | None = Field(default=None, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, data: Any) -> Any:
        data = {"kind": data} if isinstance(data, str) else data
        if isinstance(data, dict) and isinstance(data.get("kind"), str):
            return MISMATCH_DEFAULTS.get(data["kind"], {}) | data
        return data

    @model_validator(mode="after")
    def _ordered(self) -> Mismatch:
        if self.high is None:
            raise ValueError("high is missing")
        if self.kind == "tis" and self.low is not None:
            raise ValueError("tis truncates from above only; low belongs to mis and icepop")
        if self.low is not None and self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


class Component(Strict):
    """L_c = coef · Σ_t weight[t]·term[t] / denominator[t]."""

    term: str = Field(description="a name of the table of terms, or your own function as module:function")
    coef: float = Field(default=1.0, description="factor on the whole component")
    normalizer: Annotated[Normalizer, BeforeValidator(_named)] = Field(
        default=Normalizer(), description="a name, or a table of its own"
    )
    options: SerializeAsAny[TermOptions] = Field(default_factory=NoOptions, validate_default=True)
    select: list[Rule] = Field(default_factory=list, description="rules; default: what the policy sampled")
    roles: dict[Literal["system", "user", "assistant", "tool"], RoleWeight] = Field(
        default_factory=dict, description="prime-rl's spelling of rules for observations, in place of select"
    )
    rows: dict[str, list[str]] = Field(
        default_factory=dict, description="scalar name (or struct.field) to the values whose rows are admitted"
    )
    drop: list[str] = Field(
        default_factory=list, description="regular expressions; weighed tokens that overlap a match leave"
    )
    zero_advantage: Literal["keep", "drop"] = Field(
        default="keep", description="drop: tokens with advantage exactly 0 leave mask and count"
    )
    mismatch: Mismatch | None = Field(default=None, description="a kind, or a table of its own")

    @field_validator("term")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            term_spec(value)
        except UsageError as error:
            raise ValueError(f"{error.what}; {error.fix}") from None
        return value

    @field_validator("options", mode="plain")
    @classmethod
    def _options(cls, value: Any, info: ValidationInfo) -> TermOptions:
        if "term" not in info.data:  # the term itself is the fault, reported there
            return NoOptions()
        model = term_spec(info.data["term"]).options
        if isinstance(value, NoOptions):
            value = {}
        try:
            return model.model_validate(value.model_dump() if isinstance(value, TermOptions) else value)
        except ValidationError as error:
            problems = [
                {"loc": list(item["loc"]), "msg": item["msg"].removeprefix("Value error, ")} for item in error.errors()
            ]
            known = ", ".join(model.model_fields) or "none"
            raise PydanticCustomError(
                "term_options",
                "options of term {term}: {first} (known: {known})",
                {"term": info.data["term"], "first": problems[0]["msg"], "known": known, "problems": problems},
            ) from None

    @field_validator("drop")
    @classmethod
    def _patterns(cls, value: list[str]) -> list[str]:
        for pattern in value:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression: {pattern!r} ({error})") from None
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Component:
        if self.select and self.roles:
            raise ValueError("select and roles exclude each other; write the roles as [[…select]] rules")
        if self.zero_advantage == "drop" and not self.spec.uses_advantage:
            raise ValueError(f'zero_advantage = "drop" needs a term with advantages, {self.term!r} has none')
        if self.mismatch is not None and not self.spec.uses_advantage:
            raise ValueError(f"mismatch corrects policy terms, {self.term!r} is none")
        return self

    @property
    def spec(self) -> TermSpec:
        """What the term is: options model, needs, formula, source."""
        return term_spec(self.term)

    @property
    def needs(self) -> frozenset[str]:
        """advantage, old, sampler, ref, entropy: what the term and the mismatch weight read."""
        needs = needs_of(self.term, self.options)
        return needs | {"sampler", "old"} if self.mismatch is not None else needs

    @property
    def on_policy(self) -> bool:
        """The term stands on the policy's own samples: advantages or sampler ratios. Demonstrations never enter it."""
        return bool(self.needs & {"advantage", "sampler", "old"})

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The selection in force: `select`, else `roles` spelled out, else what the policy sampled."""
        if self.select:
            return tuple(self.select)
        if self.roles:
            return tuple(
                Rule(
                    weight=role.alpha,
                    sampled=False,
                    authors=list(OTHERS),
                    roles=[name],
                    parts=list(BODY),
                    after_reply=True,
                )
                for name, role in self.roles.items()
            )
        return (Rule(sampled=True),)

    @property
    def policy_only(self) -> bool:
        """Every rule with a weight asks for the policy's own tokens: demonstrations and observations never enter."""
        return all(rule.sampled or rule.authors == ["policy"] for rule in self.rules if rule.weight)
