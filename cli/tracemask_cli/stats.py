"""`tracemask stats`: what a dataset holds, as tables in the terminal or JSON. Knows no rule."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tracemask_cli import options

if TYPE_CHECKING:
    from rich.console import Console

    from tracemask.store.stats import Spread, Stats

_BAR = 40


def command(
    datasets: options.Datasets,
    columns: options.Columns = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON on stdout.")] = False,
) -> None:
    """Count tokens by author, role and part; lengths, groups, rewards, fidelity, drift."""
    from tracemask.store.stats import stats
    from tracemask_cli.dataset import opened
    from tracemask_cli.output import console, print_json

    found = stats(opened(datasets, columns=columns))
    if as_json:
        print_json(found.to_json())
        return
    out = console(stderr=False)
    _overview(found, out)
    _shares(found, out)
    _lengths(found, out)


def _overview(found: Stats, out: Console) -> None:
    from rich.table import Table

    from tracemask_cli.output import neutral, print_table

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    traces = f" from {found.traces:,} traces" if found.traces is not None else ""
    table.add_row("rows", f"{found.rows:,}{traces} ({found.kind})")
    trained = (
        "" if found.trained is None else f", {found.trained:,} in the loss by {found.trained_by} ({_share(found)})"
    )
    table.add_row("tokens", f"{found.tokens:,}{trained}")
    table.add_row("columns", neutral(", ".join(found.columns)))
    if found.groups is not None:
        sizes, groups = found.groups.sizes, found.groups
        table.add_row("groups", f"{groups.groups:,} of {_number(sizes.min)}–{_number(sizes.max)} rollouts; "
                                f"{groups.singletons:,} alone, {groups.zero_spread:,} with equal rewards, "
                                f"{groups.split_over_shards:,} split over shards")  # fmt: skip
    if found.reward is not None:
        table.add_row("reward", f"{_spread(found.reward)}; missing {found.reward_missing:,}")
    for name, parts in (("fidelity", found.fidelity), ("drift", found.drift)):
        if parts:
            table.add_row(name, ", ".join(f"{neutral(label)} {n:,}" for label, n in parts.items()))
    counts = {"truncated": found.truncated, "approximate": found.approximate, "forked": found.forked}
    known = [f"{name} {n:,}" for name, n in counts.items() if n is not None]
    if known:
        table.add_row("rows that are", ", ".join(known))
    print_table(out, table)


def _shares(found: Stats, out: Console) -> None:
    from rich.table import Table

    from tracemask_cli.output import print_table

    for name, parts in found.by.items():
        table = Table("tokens by " + name, "", "", box=None, pad_edge=False, header_style="bold")
        for label, count in parts.items():
            table.add_row(label, f"{count:>12,}", f"{count / max(1, found.tokens):6.1%}")
        out.print()
        print_table(out, table)


def _lengths(found: Stats, out: Console) -> None:
    out.print()
    out.print(f"tokens a row: {_spread(found.lengths)}")
    most = max((rows for _, _, rows in found.histogram), default=1)
    for start, end, rows in found.histogram:
        bar = "█" * round(_BAR * rows / most) or ("▏" if rows else "")
        out.print(f"{start:>9,} – {end - 1:<9,} {rows:>8,} {bar}")


def _share(found: Stats) -> str:
    return f"{(found.trained or 0) / max(1, found.tokens):.1%}"


def _spread(spread: Spread) -> str:
    if not spread.n:
        return "none"
    return (f"mean {_number(spread.mean)}, std {_number(spread.std)}, min {_number(spread.min)}, "
            f"median {_number(spread.p50)}, 90 % {_number(spread.p90)}, max {_number(spread.max)}")  # fmt: skip


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
