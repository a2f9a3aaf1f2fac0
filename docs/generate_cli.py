"""docs/reference/cli.md from the verbs' own help."""

from __future__ import annotations

import os

from tracemask_cli.main import VERBS


def pages() -> dict[str, str]:
    """The command line's reference: `tracemask VERB --help` of every verb."""
    os.environ["COLUMNS"] = "100"
    os.environ["NO_COLOR"] = "1"
    from typer.testing import CliRunner

    from tracemask_cli.main import app

    out = ["# Command line\n", "Generated from `tracemask VERB --help`.\n"]
    for verb in VERBS:
        result = CliRunner().invoke(app, [verb, "--help"], prog_name="tracemask", terminal_width=100)
        out.append(f"## {verb}\n\n```\n{result.output.strip()}\n```\n")
    return {"docs/reference/cli.md": "\n".join(out)}
