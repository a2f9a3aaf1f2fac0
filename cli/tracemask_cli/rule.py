"""tracemask rule CODE: the page of one lint rule."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def command(
    code: Annotated[str, typer.Argument(help="A rule's code or name, as TM305 or stop-untrained.")],
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Explain a lint rule: what it does, why it is bad, an example, how to fix it, its limits.

    Codes TM9xx name errors that stop a run, not rules: for those, the name.
    """
    from tracemask.check.pages import page
    from tracemask.check.rule import all_rules, matching
    from tracemask.core.codes import OPERATIONAL

    operational = OPERATIONAL.get(code.strip().upper())
    if operational is not None:
        _error(code.strip().upper(), operational, json)
        return
    for found in sorted(matching([code])):
        rule = all_rules()[found]
        if json:
            from tracemask_cli.output import print_json

            print_json({"code": rule.code, "name": rule.name, "severity": rule.severity.value,
                        "needs": [need.letter for need in rule.needs], "doc": rule.doc})  # fmt: skip
        else:
            sys.stdout.buffer.write(page(rule).encode())


def _error(code: str, name: str, json: bool) -> None:
    said = "An error that stops a run or refuses a record, not a rule: its line says where, what and the fix."
    if json:
        from tracemask_cli.output import print_json

        print_json({"code": code, "name": name, "doc": said})
    else:
        sys.stdout.buffer.write(f"# {code} {name}\n\n{said}\n".encode())
