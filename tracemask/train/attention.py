"""Attention over a laid-out micro-batch: each run of slots over its ancestors' keys. Knows slots; no rows, no weights.

Registered with transformers' AttentionInterface, so that any model built on it computes prefix trees and packed rows
exactly. Because no mask function is registered under these names, transformers builds no mask of its own; each layer
hands over its own sliding window, which counts depth.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tracemask.core.errors import TrainError
from tracemask.core.registry import Table
from tracemask.train.tree import Layout, lay_out


@dataclass(frozen=True, slots=True)
class Run:
    """Slots [start, stop) that follow each other along one path; `above` are the slot ranges of their ancestors.

    Along a path, depth counts 0, 1, 2, …: the ancestors' ranges joined are depths [0, depth).
    """

    start: int
    stop: int
    depth: int
    above: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Plan:
    """What every attention layer needs to know about one micro-batch; passed as the keyword `plan`.

    size: slots S. runs: they cover [0, S) in order. exit[S], position[S] int64 tensors on the model's device.
    memory: masks shared by layers, keyed by (kind, window).
    """

    size: int
    runs: tuple[Run, ...]
    exit: Tensor
    position: Tensor
    memory: dict[tuple[str, int | None], Any] = field(default_factory=dict)


def plan_of(layout: Layout, *, device: torch.device | str = "cpu") -> Plan:
    """The attention plan of a layout. O(S + Σ ancestors of the runs)."""
    starts = [slot for slot in range(len(layout)) if layout.parent[slot] != slot - 1 or slot == 0]
    stops = [*starts[1:], len(layout)]
    above_of: dict[int, tuple[tuple[int, int], ...]] = {}
    runs: list[Run] = []
    for index, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        parent = int(layout.parent[start])
        above: tuple[tuple[int, int], ...] = ()
        if parent >= 0:
            home = _run_of(starts, parent)
            above = (*above_of[home], (starts[home], parent + 1))
        above_of[index] = above
        runs.append(Run(start, stop, int(layout.position[start]), above))
    exit_S = torch.from_numpy(layout.exit).to(device)
    return Plan(len(layout), tuple(runs), exit_S, torch.from_numpy(layout.position).to(device))


def _run_of(starts: list[int], slot: int) -> int:
    return bisect_right(starts, slot) - 1


def _tail(ranges: tuple[tuple[int, int], ...], drop: int) -> list[tuple[int, int]]:
    """The joined ranges without their first `drop` slots."""
    kept = []
    for start, stop in ranges:
        cut = min(drop, stop - start)
        drop -= cut
        if start + cut < stop:
            kept.append((start + cut, stop))
    return kept


@dataclass(frozen=True, slots=True)
class Scores:
    """How scores become weights: softmax of q·k·scale, soft-capped, with one more logit a head that takes weight away.

    scale None: 1/√d. window: keys within it, by depth. softcap: cap·tanh(score / cap). sinks [heads] or None.
    """

    scale: float | None = None
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether the fused kernels compute it."""
        return self.softcap is None and self.sinks is None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, seen: Tensor | None) -> Tensor:
        """[1, heads, n, d] over keys [1, heads, m, d]; seen: bool[n, m], None: each query its own place and before.

        Sinks and soft-caps form the scores, n × m a head, in float32 or wider.
        """
        if self.plain:
            return scaled_dot_product_attention(
                query, key, value, attn_mask=seen, is_causal=seen is None, scale=self.scale
            )
        if seen is None:
            seen = _run_mask(query.shape[2], key.shape[2], None, query.device)
        score = (query @ key.transpose(2, 3)) * (query.shape[-1] ** -0.5 if self.scale is None else self.scale)
        if self.softcap is not None:
            score = self.softcap * torch.tanh(score / self.softcap)
        score = score.masked_fill(~seen, float("-inf"))
        score = score if score.dtype == torch.float64 else score.float()
        if self.sinks is not None:
            score = torch.cat([score, self.sinks.to(score.dtype).view(1, -1, 1, 1).expand(-1, -1, len(seen), -1)], -1)
        weights = score.softmax(-1)[..., : key.shape[2]]
        return weights.to(value.dtype) @ value


def segments(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Attention run by run over the ancestors' keys and values; no S × S array exists.

    query [1, heads, S, d], key and value [1, key heads, S, d] → [1, S, heads, d].
    """
    plan, scores = _checked(query, attention_mask, options)
    window = scores.window
    if query.shape[1] != key.shape[1]:
        times = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    out = []
    for run in plan.runs:
        mine = slice(run.start, run.stop)
        length = run.stop - run.start
        if not run.above and (window is None or length <= window):
            out.append(scores.attend(query[:, :, mine], key[:, :, mine], value[:, :, mine], None))
            continue
        unseen = 0 if window is None else max(0, run.depth - window + 1)
        ranges = [*_tail(run.above, unseen), (run.start, run.stop)]
        keys = torch.cat([key[:, :, start:stop] for start, stop in ranges], 2)
        values = torch.cat([value[:, :, start:stop] for start, stop in ranges], 2)
        seen = _run_mask(length, keys.shape[2], window, query.device)
        out.append(scores.attend(query[:, :, mine], keys, values, seen))
    return torch.cat(out, 2).transpose(1, 2).contiguous(), None


def _run_mask(length: int, keys: int, window: int | None, device: torch.device) -> Tensor:
    """bool[length, keys]: the last `length` keys are the run's own; a query sees the `window` keys up to itself."""
    seen = torch.ones(length, keys, dtype=torch.bool, device=device).tril(keys - length)
    return seen if window is None else seen.triu(keys - length - window + 1)


def dense(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The same attention as one S × S mask: the reference that `segments` is tested against. Shapes as there."""
    plan, scores = _checked(query, attention_mask, options)
    times = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
    remembered = ("dense", scores.window)
    if remembered not in plan.memory:
        slot = torch.arange(plan.size, device=query.device)
        plan.memory[remembered] = _sees(plan, scores.window)(None, None, slot[:, None], slot[None, :])
    out = scores.attend(query, key, value, plan.memory[remembered])
    return out.transpose(1, 2).contiguous(), None


def flex(
    module: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """The same mask expression as a block mask for flex_attention; its backward needs a GPU. Shapes as `segments`."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    plan, scores = _checked(query, attention_mask, options)
    if not scores.plain:
        _refused("the model has attention sinks or soft-caps", "--attention segments, which computes them")
    remembered = ("flex", scores.window)
    if remembered not in plan.memory:
        size = plan.size
        plan.memory[remembered] = create_block_mask(
            _sees(plan, scores.window), None, None, size, size, device=query.device
        )
    if torch.is_autocast_enabled(query.device.type):  # norms of queries and keys leave float32 beside half values
        half = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(half), key.to(half), value.to(half)
    kernel = _compiled() if query.is_cuda else flex_attention
    grouped = query.shape[1] != key.shape[1]
    out = kernel(query, key, value, block_mask=plan.memory[remembered], scale=scores.scale, enable_gqa=grouped)
    return out.transpose(1, 2).contiguous(), None


@cache
def _compiled() -> Any:
    """The fused kernel, compiled once a process."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def _sees(plan: Plan, window: int | None) -> Any:
    """The one mask expression: an ancestor or itself, and within the window by depth. It holds tensors, not the plan,
    so that a compiled kernel serves every micro-batch.
    """
    leave, depth = plan.exit, plan.position

    def sees(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        seen = (key <= query) & (query < leave[key])
        return seen if window is None else seen & (depth[query] - depth[key] < window)

    return sees


# What models hand over that changes nothing here: masks are ours, and caches, positions and outputs are not asked for.
_HARMLESS = {
    "plan", "scaling", "sliding_window", "dropout", "softcap", "s_aux", "is_causal", "position_ids", "cache_position",
    "use_cache", "output_attentions", "output_hidden_states", "output_router_logits", "return_dict",
}  # fmt: skip


def _checked(query: Tensor, mask: Tensor | None, options: dict[str, Any]) -> tuple[Plan, Scores]:
    """The plan and the scores' facts of a call; refuses what would be ignored (dropout, a mask, anything unknown)."""
    plan = options.get("plan")
    what = ""
    if not isinstance(plan, Plan):
        what = "the model does not hand the layout to its attention layers"
    elif mask is not None:
        what = "the model passes an attention mask of its own"
    elif query.shape[0] != 1 or query.shape[2] != plan.size:
        what = f"attention got {tuple(query.shape)} for {plan.size} slots in one row"
    elif options.get("dropout"):
        what = "attention dropout is not reproducible over shared prefixes"
    elif options.get("is_causal") is False:
        what = "attention is not causal"
    else:
        unknown = sorted(name for name, value in options.items() if value is not None and name not in _HARMLESS)
        what = f"attention needs {', '.join(unknown)}" if unknown else ""
    if what:
        _refused(what, "use a model with plain or sliding-window attention")
    assert isinstance(plan, Plan)
    given = (options.get(name) for name in ("scaling", "sliding_window", "softcap", "s_aux"))
    return plan, Scores(*given)


def _refused(what: str, fix: str) -> NoReturn:
    raise TrainError("TM960", where="attention", what=what, fix=fix)


ATTENTION = Table("attention", segments=segments, dense=dense, flex=flex)


def install(name: str) -> str:
    """Register attention `name` with transformers and return the name to give `attn_implementation`. Idempotent."""
    from transformers import AttentionInterface

    registered = f"tracemask_{name}"
    AttentionInterface.register(registered, ATTENTION[name])
    return registered


def check_flex(device: torch.device) -> None:
    """Refuse flex_attention unless forward and backward agree with `segments` on this device (TM960)."""
    if device.type != "cuda":
        raise TrainError(
            "TM960", where="attention", what="flex attention has no backward on a CPU", fix="--attention segments"
        )
    rows = [np.asarray([*range(200), tail, *range(tail)]) for tail in (40, 90, 140)]
    plan = plan_of(lay_out(rows), device=device)
    try:
        worst = max(_flex_gap(plan, device, window=window) for window in (None, 64))
    except (RuntimeError, ImportError) as error:  # whatever the compiler of this machine may raise
        _refused(f"flex attention does not compile here: {str(error).strip().splitlines()[:1]}", "--attention segments")
    if not worst < 1e-2:
        what = f"on this GPU flex attention differs from segments by {worst:.1e} (relative)"
        _refused(what, "--attention segments")


def _flex_gap(plan: Plan, device: torch.device, *, window: int | None) -> float:
    """Largest relative difference between flex and segments, value and gradients, four heads over two of keys."""
    results = []
    for attend in (segments, flex):
        generator = torch.Generator(device=device).manual_seed(0)
        parts = [
            torch.randn(1, heads, plan.size, 64, generator=generator, device=device).requires_grad_()
            for heads in (4, 2, 2)
        ]
        query, key, value = parts
        out, _ = attend(torch.nn.Identity(), query, key, value, None, plan=plan, sliding_window=window)
        results.append([out, *torch.autograd.grad(out.square().sum(), parts)])
    return max(float((one - two).abs().max() / one.abs().max()) for one, two in zip(*results, strict=True))
