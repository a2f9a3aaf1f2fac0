"""The recipe: who is trained, how hard, as data. Knows its own sections; loading is `load`, computing is `step`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from tracemask.recipe.component import Component, Strict

EstimatorName = Literal[
    "none",
    "reward",
    "group_mean",
    "group_mean_std",
    "rloo",
    "maxrl",
    "ema",
    "batch",
    "given",
    "per_token",
    "gae",
    "reward_to_go",
]

ESTIMATOR_OPTIONS: dict[str, frozenset[str]] = {
    "group_mean": frozenset({"baseline", "whiten", "ddof", "eps"}),
    "group_mean_std": frozenset({"ddof", "eps"}),
    "rloo": frozenset({"whiten", "ddof", "eps"}),
    "maxrl": frozenset({"whiten", "ddof", "eps"}),
    "ema": frozenset({"decay", "agent"}),
    "batch": frozenset({"ddof", "eps"}),
    "gae": frozenset({"gamma", "lam"}),
    "reward_to_go": frozenset({"gamma"}),
}
PER_TOKEN = frozenset({"per_token", "gae", "reward_to_go"})
RELATIVE = frozenset({"group_mean", "group_mean_std", "rloo", "maxrl"})


class AdvantageSpec(Strict):
    """How rewards become advantages. Options that the estimator does not read are refused.

    ddof, eps: (r − mean) / (std_ddof + eps). baseline: plain group mean, or weighted by sampled tokens. decay, agent:
    the running mean of each agent's rewards, keyed by a scalar column. gamma, lam: GAE over policy tokens.
    whiten "batch": divided by (std_ddof + eps) over all rollouts. shared: what a token gets that lies in several
    branches. multiply: a factor on every advantage.
    """

    estimator: EstimatorName = "none"
    ddof: Literal[0, 1] = 1
    eps: float = Field(default=1e-6, ge=0)
    baseline: Literal["mean", "length_weighted"] = "mean"
    decay: float = Field(default=0.95, ge=0, lt=1)
    agent: str = "agent"
    gamma: float = Field(default=1.0, ge=0, le=1)
    lam: float = Field(default=1.0, ge=0, le=1)
    whiten: Literal["none", "batch"] = "none"
    multiply: float = Field(default=1.0, gt=0)
    shared: Literal["owner", "mean_of_branches"] = "owner"

    @property
    def over_batch(self) -> bool:
        """The value of a rollout depends on every rollout of its step, not only on its group."""
        return self.estimator == "batch" or self.whiten == "batch"

    @model_validator(mode="after")
    def _belongs(self) -> AdvantageSpec:
        own = ESTIMATOR_OPTIONS.get(self.estimator, frozenset())
        optional = set(AdvantageSpec.model_fields) - {"estimator", "multiply", "shared"}
        defaults = {name: AdvantageSpec.model_fields[name].default for name in optional}
        for name in sorted(optional & self.model_fields_set):
            if name not in own and getattr(self, name) != defaults[name]:
                reads = ", ".join(sorted(own)) or "no option"
                raise ValueError(f"estimator {self.estimator!r} does not read {name}; it reads {reads}")
        return self


class LengthPenalty(Strict):
    """prime-rl's linear penalty, subtracted from each reward before the baseline.

    pass_rate · Σ weight · (rollout's quantity / the group's largest), with pass_rate the group's mean reward.
    """

    type: Literal["linear"] = "linear"
    num_output_tokens_weight: float = Field(default=0.25, ge=0)
    num_input_tokens_weight: float = Field(default=0.1, ge=0)
    num_turns_weight: float = Field(default=0.1, ge=0)


class SoftOverlong(Strict):
    """DAPO's soft punishment: 0 up to max_length − buffer sampled tokens, then linearly to −penalty at max_length."""

    max_length: int = Field(ge=1)
    buffer: int = Field(ge=1)
    penalty: float = Field(default=1.0, gt=0)

    @model_validator(mode="after")
    def _inside(self) -> SoftOverlong:
        if self.buffer > self.max_length:
            raise ValueError(f"buffer {self.buffer} is larger than max_length {self.max_length}")
        return self


class RewardSpec(Strict):
    """Which scalar is the reward, what happens where it is missing, and what is subtracted before the baseline.

    column: gae and reward_to_go read the per-token column of that name where rows have one; `call_reward` holds the
    rewards of single calls.
    """

    column: str = "reward"
    missing: Literal["error", "exclude"] = "exclude"
    length_penalty: LengthPenalty | None = None
    soft_overlong: SoftOverlong | None = None


class GroupSpec(Strict):
    """Which rollouts are compared. by: a scalar column; default group_id, where absent task_id.

    rollout: all rows of a trace are one rollout, or every row is one. size: the number expected in a group.
    """

    by: str | None = None
    rollout: Literal["trace", "row"] = "trace"
    size: int | None = Field(default=None, ge=1)
    incomplete: Literal["keep", "drop", "error"] = "keep"


class FilterSpec(Strict):
    """Rollouts whose tokens leave the policy terms, numerator and token counts alike; they stay in N."""

    truncated: Literal["keep", "mask"] = "keep"
    max_tokens: int | None = Field(default=None, ge=1, description="mask rollouts with more sampled tokens than this")


class RatioMask(Strict):
    """Mask by old − sampler log-prob, both read from the rows, so that counts are known before the forward pass."""

    level: Literal["token", "sequence_mean"] = "sequence_mean"
    low: float = Field(gt=0, description="smallest ratio kept")
    high: float = Field(gt=0, description="largest ratio kept")
    when: Literal["always", "negative_advantage"] = "always"

    @model_validator(mode="after")
    def _ordered(self) -> RatioMask:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")
        return self


class OffPolicySpec(Strict):
    """What may be too old. max_staleness counts policy versions between sampling and the step."""

    max_staleness: int | None = Field(default=None, ge=0)
    on_stale: Literal["mask", "error"] = "mask"
    missing_version: Literal["error", "mask", "keep"] = "error"
    ratio_mask: RatioMask | None = None


class Recipe(Strict):
    """Components with their weight streams and denominators, and the advantages they stand on.

    In TOML every table that is not one of these sections is a component: `[rl]`, `[ce]`, `[kl]`, or any name you like.
    """

    name: str = Field(description="in TOML by default the file's name")
    summary: str = ""
    source: str = ""
    notes: list[str] = Field(default_factory=list)
    advantage: AdvantageSpec = AdvantageSpec()
    reward: RewardSpec = RewardSpec()
    group: GroupSpec = GroupSpec()
    filters: FilterSpec = FilterSpec()
    off_policy: OffPolicySpec = OffPolicySpec()
    allow_messages: bool = Field(
        default=False, description="let policy terms train on re-encoded text, which nobody sampled"
    )
    missing_logprob: Literal["error", "exclude", "keep"] = Field(
        default="error", description="policy tokens without the sampler log-prob that a component needs"
    )
    exponent_cap: float = Field(
        default=20.0, gt=0, description="beyond it e^x continues as its tangent, counted as capped"
    )
    components: dict[str, Component] = Field(min_length=1)

    @field_validator("components")
    @classmethod
    def _names(cls, value: dict[str, Component]) -> dict[str, Component]:
        for name in value:
            if not name.isidentifier():
                raise ValueError(f"component name {name!r} must be an identifier: it becomes the column weight.{name}")
            if name in cls.model_fields or name == "extends":
                raise ValueError(f"component name {name!r} is the name of a section")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        users = [name for name, component in self.components.items() if "advantage" in component.needs]
        if users and self.advantage.estimator == "none":
            raise ValueError(f"component {users[0]!r} needs advantages: set [advantage] estimator")
        if self.advantage.estimator in PER_TOKEN and self.advantage.shared == "mean_of_branches":
            raise ValueError(
                'shared = "mean_of_branches" needs one advantage per rollout; this estimator gives one per token'
            )
        if self.advantage.estimator == "per_token" and (self.reward.length_penalty or self.reward.soft_overlong):
            raise ValueError("given per-token advantages ignore reward penalties; leave them out")
        for name, component in self.components.items():
            if "roles" in component.model_fields_set and component.spec.uses_advantage and component.roles:
                raise ValueError(f"component {name!r}: roles select observations, which have no advantage; use term ce")
        return self

    @classmethod
    def load(cls, source: str | Path | dict[str, Any] | Recipe) -> Recipe:
        """A recipe from a preset's name, a TOML file (ours, or prime-rl's `[orchestrator.algo]`) or a dict.

        Raises RecipeError TM940 with the path inside the TOML, UsageError TM902 for an unknown preset,
        RecipeError TM951 for an estimator that is refused unless named `compat`.
        """
        if isinstance(source, Recipe):
            return source
        from tracemask.recipe.load import load

        return load(source)

    def explain(self) -> str:
        """Formula, mask, denominator, defaults and source of every component, as text."""
        from tracemask.recipe.explain import explain

        return explain(self)

    def to_toml(self) -> str:
        """The recipe as TOML with every non-default field; `Recipe.load` of it gives the same recipe."""
        from tracemask.recipe.dump import to_toml

        return to_toml(self)

    @property
    def needs(self) -> frozenset[str]:
        """What any component reads: advantage, old, sampler, ref, entropy."""
        return frozenset().union(*(component.needs for component in self.components.values()))
