"""`tracemask score`: a model's log-probs of the stored tokens, as a column of new shards."""

from __future__ import annotations

from typing import Annotated

import typer

from tracemask_cli import options


def command(
    shards: options.Shards,
    model: Annotated[str, typer.Option("--model", "-m", help="Model folder that transformers loads.")],
    out: Annotated[str, typer.Option("--out", "-o", help="Folder of the new shards.")],
    as_: Annotated[str, typer.Option("--as", help="ref | old | score: which column they become.")] = "score",
    tokens: Annotated[str, typer.Option(help="sampled | all")] = "sampled",
    tokens_per_batch: Annotated[int, typer.Option(help="Slots computed at once.")] = 8192,
    dtype: Annotated[str, typer.Option(help="float32 | float64")] = "float32",
    force: Annotated[bool, typer.Option("--force", help="Replace what lies at --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Summary as JSON on stdout.")] = False,
) -> None:
    """Write a model's log-probs of the stored tokens into new shards.

    ref: the reference policy of a KL term. old: the proximal policy. score: to compare with the sampler's (TM402).
    """
    from tracemask.core.errors import UsageError
    from tracemask.train.score import As, Which, score
    from tracemask_cli.output import console, print_json, progress

    for name, value, known in (("--as", as_, As), ("--tokens", tokens, Which), ("--dtype", dtype, None)):
        names = ["float32", "float64"] if known is None else [one.value for one in known]
        if value not in names:
            raise UsageError("TM900", where=name, what=f"{value!r} is not known", fix=f"one of {', '.join(names)}")
    with progress("score", unit="rows") as advance:
        found = score(
            shards,
            model=model,
            out=out,
            as_=as_,
            which=tokens,
            tokens_per_batch=tokens_per_batch,
            dtype=dtype,
            force=force,
            observer=lambda _: advance(),
        )
    if json:
        print_json(found.to_json())
        return
    text = console(stderr=False)
    text.print(f"{found.tokens:,} tokens of {found.rows} rows scored as {found.column}")
    if found.compared:
        gap = f"mean {found.mean_gap:.2e}, largest {found.max_gap:.2e}"
        text.print(f"distance to the sampler's log-probs over {found.compared:,} tokens: {gap} nats")
    text.print(f"written {found.out}")
