"""prime-rl's `[orchestrator.algo]` and `[trainer.loss]` tables as our recipes. Knows their fields, not their code.

Source: prime-rl docs/algorithms.md and its configuration reference: type, roles.<role>.alpha, length_penalty,
teacher, sampling.source, decay; loss: dppo_mask_low/high, adv_tau, kl_tau.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracemask.core.errors import RecipeError
from tracemask.core.registry import Table

ELSEWHERE = {"type", "sampling", "teacher"}  # which model samples or scores: not a weight
DPPO: dict[str, Any] = {"term": "dppo", "normalizer": "token_mean", "zero_advantage": "drop"}


def recognises(data: dict[str, Any]) -> bool:
    """The dict is a prime-rl run file, its orchestrator table, or an algorithm alone (`type` without our sections)."""
    return "orchestrator" in data or "algo" in data or ("type" in data and "components" not in data)


def translate(data: dict[str, Any], *, where: str) -> dict[str, Any]:
    """Our recipe (a dict) for prime-rl's tables. Raises RecipeError TM940 for what cannot be carried over exactly."""
    orchestrator = _table(data, "orchestrator", where) if "orchestrator" in data else data
    path = "orchestrator.algo" if "orchestrator" in data else "algo" if "algo" in data else "type"
    algo = (
        orchestrator if "type" in orchestrator and "algo" not in orchestrator else _table(orchestrator, "algo", where)
    )
    kind = algo.get("type", "grpo")
    if not isinstance(kind, str) or kind not in ALGORITHMS:
        raise _refused(where, f"{path}.type", f"algorithm {kind!r} is not known", f"known: {', '.join(ALGORITHMS)}")
    recipe, reads = ALGORITHMS[kind](algo, where, path)
    for field in algo:
        if field not in ELSEWHERE | reads:
            known = ", ".join(sorted(ELSEWHERE | reads))
            raise _refused(where, f"{path}.{field}", f"{kind} does not read this field", f"it reads {known}")
    if _table(orchestrator, "train", where).get("filter_zero_advantages") is False and "rl" in recipe:
        recipe["rl"]["zero_advantage"] = "keep"
    if "group_size" in orchestrator and "advantage" in recipe:
        recipe["group"] = {"size": orchestrator["group_size"]}
    _loss(recipe, _table(_table(data, "trainer", where), "loss", where), where)
    return {"name": f"prime_rl_{kind}", "source": "prime-rl, docs/algorithms.md"} | recipe


def _grpo(algo: dict[str, Any], where: str, path: str) -> tuple[dict[str, Any], set[str]]:
    recipe: dict[str, Any] = {"advantage": {"estimator": "group_mean"}, "rl": dict(DPPO)}
    if algo.get("length_penalty") is not None:
        recipe["reward"] = {"length_penalty": algo["length_penalty"]}
    if algo.get("length_weighted_baseline"):
        recipe["advantage"]["baseline"] = "length_weighted"
    if algo.get("loss_aggregation", "token") == "prompt":
        recipe["rl"]["normalizer"] = "prompt_mean"
        recipe["notes"] = [
            "loss_aggregation = prompt: groups are counted as scheduled, prime-rl counts those with tokens left."
        ]
    return recipe, {"length_penalty", "length_weighted_baseline", "loss_aggregation"}


def _echo(algo: dict[str, Any], where: str, path: str) -> tuple[dict[str, Any], set[str]]:
    recipe, reads = _grpo(algo, where, path)
    if algo.get("filter") is not None:
        raise _refused(
            where,
            f"{path}.filter",
            "prime-rl's filters are functions over its own rollout objects",
            "write the lines to leave out as regular expressions in [ce] drop",
        )
    roles = algo.get("roles", {"tool": {}})
    recipe["ce"] = {"term": "ce", "normalizer": "token_mean", "roles": roles}
    return recipe, reads | {"roles", "filter"}


def _max_rl(algo: dict[str, Any], where: str, path: str) -> tuple[dict[str, Any], set[str]]:
    return {"advantage": {"estimator": "maxrl"}, "rl": dict(DPPO)}, set()


def _rae(algo: dict[str, Any], where: str, path: str) -> tuple[dict[str, Any], set[str]]:
    return {"advantage": {"estimator": "ema", "decay": algo.get("decay", 0.95)}, "rl": dict(DPPO)}, {"decay"}


def _sft(algo: dict[str, Any], where: str, path: str) -> tuple[dict[str, Any], set[str]]:
    select = [
        {"authors": ["policy", "model"], "roles": ["assistant"], "parts": ["reasoning", "content", "tool_call", "stop"]}
    ]
    return {"ce": {"term": "ce", "normalizer": "token_mean", "select": select}}, set()


def _opd(algo: dict[str, Any], where: str, path: str) -> tuple[dict[str, Any], set[str]]:
    reads = {"demo_key", "template", "renderer"} if algo.get("type") == "opsd" else set()
    return {"ref_kl": {"term": "ref_kl", "normalizer": "token_mean"}}, reads


Translator = Callable[[dict[str, Any], str, str], tuple[dict[str, Any], set[str]]]
ALGORITHMS: Table[Translator] = Table(
    "prime-rl algorithm", grpo=_grpo, echo=_echo, max_rl=_max_rl, rae=_rae, sft=_sft, opd=_opd, opsd=_opd
)


def _loss(recipe: dict[str, Any], loss: dict[str, Any], where: str) -> None:
    """`[trainer.loss]` onto the rl component."""
    if not loss or "rl" not in recipe:
        return
    if loss.get("type", "default") != "default":
        raise _refused(
            where, "trainer.loss.type", f"{loss['type']!r} is your own code", 'set [rl] term = "module:function"'
        )
    names = {"dppo_mask_low": "low", "dppo_mask_high": "high", "kl_tau": "kappa"}
    for field in loss:
        if field not in names and field not in ("type", "adv_tau"):
            raise _refused(where, f"trainer.loss.{field}", "unknown field", f"known: type, adv_tau, {', '.join(names)}")
    recipe["rl"]["options"] = {ours: loss[theirs] for theirs, ours in names.items() if theirs in loss}
    if "adv_tau" in loss:
        recipe["advantage"]["multiply"] = loss["adv_tau"]


def _table(parent: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """The table `key`, empty where it is absent."""
    value = parent.get(key, {})
    if not isinstance(value, dict):
        raise _refused(where, key, f"{value!r} is not a table", f"write [{key}]")
    return value


def _refused(where: str, field: str, what: str, fix: str) -> RecipeError:
    return RecipeError("TM940", where=f"{where}: {field}", what=what, fix=fix)
