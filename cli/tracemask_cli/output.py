"""What every verb prints with: one console for people on stderr, JSON for machines on stdout."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from tracemask.core.errors import TracemaskError

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def neutral(text: str) -> str:
    """`text` with control characters and bidirectional marks spelled out, so that no input can drive the terminal."""
    return _CONTROL.sub(
        lambda match: f"\\x{ord(match[0]):02x}" if ord(match[0]) < 256 else f"\\u{ord(match[0]):04x}", text
    )


@cache
def console(*, stderr: bool = True) -> Console:
    """The rich console for people (stderr by default). Honours NO_COLOR and the terminal's width."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, soft_wrap=True)


def fail(error: TracemaskError) -> None:
    """Print one coded error on stderr."""
    from rich.text import Text

    line = Text()
    if error.where:
        line.append(neutral(error.where) + ": ")
    line.append(error.code, style="bold red")
    line.append(" " + neutral(error.what))
    console().print(line)
    if error.fix:
        console().print(Text(f"  fix: {neutral(error.fix)}", style="dim"))


def print_json(value: Any) -> None:
    """One JSON document on stdout: sorted keys, two-space indent, a newline at the end."""
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    sys.stdout.buffer.write(orjson.dumps(value, option=options))
    sys.stdout.buffer.flush()


@contextmanager
def progress(description: str, *, total: int | None = None, unit: str = "") -> Iterator[Any]:
    """A progress bar on stderr; yields `advance(n=1, total=None)`. Silent when stderr is not a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar: Progress = Progress(*columns, console=console(), transient=True, disable=not console().is_terminal)
    with bar:
        task = bar.add_task(description, total=total)

        def advance(n: int = 1, total: int | None = None) -> None:
            if total is not None:
                bar.update(task, total=total)
            bar.advance(task, n)

        yield advance
