"""`tracemask train`: options, the plan, and a live table of what moves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracemask_cli import options

if TYPE_CHECKING:
    from rich.table import Table

    from tracemask.train.trainer import Plan, StepReport

# Shown first, in this order; each component follows, then the rest of the metrics file is one command away.
_FIRST = ("reward", "advantage_std", "kl", "entropy")

Given = Annotated[list[str] | None, typer.Argument(help="Shards or another tool's dataset.", metavar="DATASET")]


def command(
    shards: Given = None,
    config: Annotated[str | None, typer.Option("--config", "-c", help="TOML with any of these options.")] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model folder that transformers loads.")] = None,
    init_tiny: Annotated[bool | None, typer.Option("--init-tiny", help="A small random Llama instead.")] = None,
    recipe: Annotated[str | None, typer.Option("--recipe", "-r", help="Preset or TOML; default grpo.")] = None,
    out: Annotated[str | None, typer.Option("--out", "-o", help="Run folder; default runs/train.")] = None,
    columns: Annotated[str | None, typer.Option(help="Foreign column names: ids=input_ids,mask=loss_mask.")] = None,
    steps: Annotated[int | None, typer.Option(help="Batches to train on; default: one pass.")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the data; default 1.")] = None,
    groups_per_step: Annotated[int | None, typer.Option(help="Whole groups in a batch; default 8.")] = None,
    tokens_per_batch: Annotated[
        int | None, typer.Option(help="Slots of a micro-batch on one rank; default 8192.")
    ] = None,
    follow: Annotated[bool | None, typer.Option("--follow", help="Each dataset that appears is a step.")] = None,
    follow_timeout: Annotated[float | None, typer.Option(help="Seconds to wait for the next one; default 600.")] = None,
    overlong: Annotated[str | None, typer.Option(help="Longer rows: error | truncate | skip; default error.")] = None,
    packing: Annotated[str | None, typer.Option(help="rows | tree | auto; default auto.")] = None,
    shuffle: Annotated[bool | None, typer.Option("--shuffle/--no-shuffle", help="Order by seed, or as stored.")] = None,
    attention: Annotated[str | None, typer.Option(help="auto | segments | dense | flex; default auto.")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 | bfloat16 | float64; default float32.")] = None,
    gradient_checkpointing: Annotated[
        bool | None, typer.Option("--gradient-checkpointing", help="Trade time for memory.")
    ] = None,
    parallel: Annotated[str | None, typer.Option(help="auto | ddp | fsdp2, over many ranks; default auto.")] = None,
    device: Annotated[str | None, typer.Option(help="auto | cpu | cuda; default auto.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate; default 1e-5.")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="AdamW's decay; default 0.0.")] = None,
    schedule: Annotated[str | None, typer.Option(help="constant | linear | cosine; default constant.")] = None,
    warmup_steps: Annotated[int | None, typer.Option(help="Linear warm-up, in optimizer updates; default 0.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="Largest gradient norm; default 1.0.")] = None,
    updates_per_batch: Annotated[int | None, typer.Option(help="Optimizer steps on each batch; default 1.")] = None,
    old: Annotated[
        str | None, typer.Option(help="auto | sampler | start | shard: old log-probs; default auto.")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="Reference model folder, or 'initial'.")] = None,
    policy_version: Annotated[int | None, typer.Option(help="Version of the weights trained here.")] = None,
    max_staleness: Annotated[int | None, typer.Option(help="Mask (or refuse) tokens of older versions.")] = None,
    lora_rank: Annotated[int | None, typer.Option(help="Train LoRA adapters of this rank (needs peft).")] = None,
    tokenizer: options.DropTokenizer = None,
    seed: Annotated[int | None, typer.Option(help="Order, initial weights and dropout; default 0.")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between checkpoints; default: one at the end.")] = None,
    resume: Annotated[str | None, typer.Option(help="auto | never | require a checkpoint; default auto.")] = None,
    export: Annotated[bool | None, typer.Option("--export/--no-export", help="Write safetensors at the end.")] = None,
    export_every: Annotated[int | None, typer.Option(help="Steps between exports, for a sampler.")] = None,
    tensorboard: Annotated[bool | None, typer.Option("--tensorboard", help="Also TensorBoard scalars.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Result (or plan) as JSON on stdout.")] = False,
) -> None:
    """Train a causal LM directly from shards: rollouts that share a prompt compute it once.

    Many ranks: python -m torch.distributed.run --nproc-per-node N --no-python tracemask train ...
    """
    values = {name: value for name, value in locals().items() if name not in ("shards", "config", "dry_run", "json")}
    _run(_settings(config, shards, values), dry=dry_run, json=json)


def _run(settings: Any, *, dry: bool, json: bool) -> None:
    from tracemask.train.trainer import dry_run as plan_of
    from tracemask.train.trainer import train
    from tracemask_cli.output import print_json

    first = os.environ.get("RANK", "0") == "0"
    if dry:
        plan = plan_of(settings)
        if first:
            print_json(plan.to_json()) if json else _show_plan(plan)
        return
    with _live(enabled=first and not json) as watch:
        result = train(settings, observer=watch)
    if first:
        print_json(result.to_json()) if json else _show_result(result)


def _settings(config: str | None, shards: list[str] | None, values: dict[str, Any]) -> Any:
    from tracemask.train.config import TrainConfig
    from tracemask_cli.dataset import columns_option

    if not shards and config is None:
        from tracemask.core.errors import UsageError

        fix = "tracemask train SHARDS --model FOLDER (or --init-tiny), or --config FILE"
        raise UsageError("TM900", where="tracemask train", what="no shards to train on", fix=fix)
    rank = values.pop("lora_rank")
    values["lora"] = None if rank is None else {"rank": rank, "alpha": 2 * rank}
    values["columns"] = columns_option(values["columns"])
    values["data"] = shards or None
    return TrainConfig.load(config, **values)


def _show_plan(plan: Plan) -> None:
    from rich.table import Table

    from tracemask_cli.output import console

    table = Table(title="plan", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for name, text in plan.lines():
        table.add_row(name, text)
    console(stderr=False).print(table)


def _show_result(result: Any) -> None:
    from tracemask_cli.output import console

    out = console(stderr=False)
    if not result.taken:
        out.print(f"nothing to do: {result.steps} steps are done already; more with --steps, anew with another --out")
    before = f", {result.steps - result.taken} of them before" if result.steps > result.taken > 0 else ""
    out.print(f"{result.steps} steps{before}, {result.seconds:.1f} s; metrics {result.metrics_file}")
    for finding in result.findings:
        out.print(f"{finding.code} {finding.message}", style="yellow")
    if result.exported:
        out.print(f"model {result.exported}")


@contextmanager
def _live(*, enabled: bool) -> Iterator[Any]:
    """Yields an observer of steps: a live table on a terminal that can redraw, one line a step elsewhere."""
    from tracemask_cli.output import console

    if not enabled:
        yield None
        return
    out = console()
    if not out.is_terminal or out.is_dumb_terminal:
        yield lambda report: out.print(_line(report))
        return
    from rich.live import Live

    recent: list[StepReport] = []
    started = time.monotonic()
    with Live(console=out, refresh_per_second=4) as live:

        def show(report: StepReport) -> None:
            recent.append(report)
            del recent[:-10]
            live.update(_table(recent, time.monotonic() - started))

        yield show


def _columns(report: StepReport) -> list[tuple[str, str]]:
    values = report.metrics
    named = [name for name in _FIRST if name in values]
    parts = [name for name in values if name.startswith("loss/")]
    spelled = [(name, f"{values[name]:.4g}") for name in named]
    spelled += [(f"{name.removeprefix('loss/')} (surrogate)", f"{values[name]:+.4g}") for name in parts]
    return [*spelled, ("grad norm", f"{values['grad_norm']:.3g}"), ("tok/s", f"{values['tokens_per_second']:,.0f}")]


def _line(report: StepReport) -> str:
    cells = "  ".join(f"{name} {value}" for name, value in _columns(report))
    return f"step {report.step}/{report.of}  {cells}"


def _table(recent: list[StepReport], elapsed: float) -> Table:
    from rich.table import Table

    last = recent[-1]
    done = last.step - recent[0].step + 1
    left = (last.of - last.step) * sum(one.metrics["seconds"] for one in recent) / done
    table = Table(title=f"step {last.step} of {last.of}   {elapsed:.0f} s, {left:.0f} s to go", title_justify="left")
    table.add_column("step", justify="right")
    names = [name for name, _ in _columns(last)]
    for name in names:
        table.add_column(name, justify="right")
    for report in recent:
        cells = dict(_columns(report))
        table.add_row(str(report.step), *(cells.get(name, "") for name in names))
    return table
