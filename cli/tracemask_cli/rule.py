"""tracemask rule CODE: the page of one lint rule."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def command(
    code: Annotated[str, typer.Argument(help="A rule's code or name, as TM305 or stop-untrained.")],
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Explain a lint rule: what it does, why it is bad, an example, how to fix it, its limits."""
    from tracemask.check.pages import page
    from tracemask.check.rule import all_rules, matching

    for found in sorted(matching([code])):
        rule = all_rules()[found]
        if json:
            from tracemask_cli.output import print_json

            print_json({"code": rule.code, "name": rule.name, "severity": rule.severity.value,
                        "needs": [need.letter for need in rule.needs], "doc": rule.doc})  # fmt: skip
        else:
            sys.stdout.buffer.write(page(rule).encode())
