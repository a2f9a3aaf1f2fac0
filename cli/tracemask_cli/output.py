"""What every verb prints with: one console for people on stderr, JSON for machines on stdout."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from tracemask.core.characters import HARMFUL

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from tracemask.core.errors import TracemaskError

_NARROW = 20  # columns below which wrapping helps nobody
_CONTROL = re.compile(f"[{HARMFUL}]")


def neutral(text: str) -> str:
    """`text` with control, zero-width and bidirectional characters and lone surrogates spelled out as TOML and Python
    do, so that no input can drive the terminal. Line breaks and tabs stay."""
    return _CONTROL.sub(_spelled, text)


def one_line(text: str) -> str:
    """`neutral`, with line breaks and tabs spelled out too: no input can pretend to be a line of ours."""
    return neutral(text).replace("\n", "\\n").replace("\t", "\\t")


def _spelled(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


@cache
def console(*, stderr: bool = True) -> Console:
    """The rich console for people (stderr by default). Honours NO_COLOR and the terminal's width; text is printed as it
    is: no markup, no emoji codes."""
    from rich.console import Console

    class Plain(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit 1; the table of verbs knows better

    return Plain(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def print_table(out: Console, table: Table) -> None:
    """Print a rich table without the blanks that fill its lines."""
    from rich.text import Text

    for line in out.render_lines(table, pad=False):
        text = Text.assemble(*((piece.text, piece.style or "") for piece in line))
        text.rstrip()
        out.print(text, soft_wrap=True)


def listing(rows: list[tuple[str, str]]) -> None:
    """Lines of a name and what it says: one each for a pipe, wrapped under each other on a terminal."""
    import shutil
    import textwrap

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for head, text in rows:
        lines = [text]
        if width - len(head) > _NARROW:
            lines = textwrap.wrap(text, width - len(head), break_on_hyphens=False) or [""]
        blank = "\n" + " " * len(head)
        sys.stdout.buffer.write(f"{head}{blank.join(lines)}\n".encode())
    sys.stdout.buffer.flush()


def fail(error: TracemaskError) -> None:
    """Print one coded error on stderr."""
    from rich.text import Text

    line = Text()
    if error.where:
        line.append(one_line(error.where) + ": ")
    line.append(error.code, style="bold red")
    line.append(" " + one_line(error.what))
    console().print(line)
    if error.fix:
        console().print(Text(f"  fix: {one_line(error.fix)}", style="dim"))


def print_json(value: Any) -> None:
    """One JSON document on stdout: sorted keys, two-space indent, a newline at the end; what could drive a terminal is
    escaped."""
    import json

    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    try:
        text = orjson.dumps(value, option=options)
    except TypeError:  # lone surrogates, integers beyond 64 bits
        text = orjson.dumps(_plain(value), option=options)
    if not text.isascii():
        text = _CONTROL.sub(lambda match: json.dumps(match[0])[1:-1], text.decode()).encode()
    sys.stdout.buffer.write(text)
    sys.stdout.buffer.flush()


def _plain(value: Any) -> Any:
    """`value` with lone surrogates spelled out and integers beyond 64 bits as text."""
    from dataclasses import asdict, is_dataclass

    if isinstance(value, str):
        return re.sub("[\ud800-\udfff]", _spelled, value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return str(value)
    return _plain(asdict(value)) if is_dataclass(value) and not isinstance(value, type) else value


def write_text(path: str, text: str) -> None:
    """Write a file that the user named, whole or not at all. Raises UsageError TM932."""
    from tracemask.store.folder import put_file

    put_file(path, text.encode("utf-8", "backslashreplace"))  # a lone surrogate is spelled out


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
