"""tracemask formats: the table of log formats."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the log formats: name, best fidelity, unit, what it reads.

    Fidelity: exact (prompt and sampled ids), completion (sampled ids only), messages (text only). Unit: record (a line,
    row or element is one trace or more) or file (a whole session). `--format auto` looks at the first records of each
    file and says what it chose; it refuses when none or two fit.
    """
    from tracemask.trace.formats import FORMATS
    from tracemask_cli.output import listing

    formats = [FORMATS[name] for name in FORMATS]
    if json:
        from tracemask_cli.output import print_json

        print_json(
            [
                {"name": form.name, "fidelity": form.fidelity.label, "unit": form.unit.value, "title": form.title}
                for form in formats
            ]
        )
        return
    listing([(f"{form.name:<12} {form.fidelity.label:<10} {form.unit.value:<7} ", form.title) for form in formats])
