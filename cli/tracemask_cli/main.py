"""The table of verbs and the one place where errors become lines and exit codes. Verbs are imported when called."""

from __future__ import annotations

import io
import os
import sys
import traceback
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

# verb -> (module, one line of help). Help is here so that `tracemask --help` imports no verb.
VERBS: dict[str, tuple[str, str]] = {
    "convert": ("convert", "Turn rollout logs into Arrow shards: every token with its author, role and part."),
    "show": ("show", "Print one row as coloured tokens: who wrote what, and what is in the loss."),
    "report": ("report", "Write a self-contained HTML page that audits a dataset."),
    "check": ("check", "Lint a dataset: masks, tokens, log-probs, rewards. Exit 1 on findings."),
    "train": ("train", "Train a causal LM directly from shards."),
    "trace": ("trace", "Show a rollout log as a tree: authors, calls, rewards, problems."),
    "formats": ("formats", "List the log formats that convert reads."),
    "schema": ("schema", "Print a published JSON Schema."),
    "stats": ("stats", "Count tokens by author, role and part; lengths, groups, rewards."),
    "export": ("export", "Write a dataset for another trainer."),
    "diff": ("diff", "Compare two datasets of the same traces token by token."),
    "explain": ("explain", "Say in words which rollouts push hardest under a recipe."),
    "rules": ("rules", "List the lint rules."),
    "rule": ("rule", "Explain one lint rule."),
    "fix": ("fix", "Write repaired shards for findings that have a fix."),
    "recipe": ("recipe", "List recipes, or explain one: formula, mask, denominator, source."),
    "materialize": ("materialize", "Write weights, denominators and advantages of a recipe into shards."),
    "score": ("score", "Write a model's log-probs of the stored tokens into shards."),
}

# package that a verb imports -> the extra of ours that brings it
EXTRAS = {"torch": "train", "transformers": "train", "safetensors": "train", "ray": "ray", "gigatoken": "fast"}


Misused: Any = typer.BadParameter.__mro__[1]  # typer's own UsageError, which it does not name


class LazyGroup(TyperGroup):
    """Imports a verb's module when the verb is called, not before; lists verbs from the table."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        module, summary = VERBS[cmd_name]
        verb = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        function = import_module(f"tracemask_cli.{module}").command
        verb.command(name=cmd_name, short_help=summary, context_settings=_HELP)(function)
        return typer.main.get_command(verb)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Name the verb that was meant, as every other unknown name is answered."""
        if args and not args[0].startswith("-") and args[0] not in VERBS:
            from tracemask.core.registry import nearest

            near = nearest(args[0], VERBS)
            hint = f" Did you mean '{near}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """A reader that has seen enough (`| head`) is no failure; click would exit 1, which here means findings."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit from None
        except KeyboardInterrupt:
            sys.stderr.write("interrupted\n")
            raise typer.Exit(130) from None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in VERBS.items()])


_HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
)


def _version(value: bool) -> None:
    if value:
        from tracemask import __version__

        typer.echo(f"tracemask {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Turn agent rollouts into training data that is provably right, and train on it.

    First: tracemask trace LOG, then convert LOG -t TOKENIZER -o SHARDS, check SHARDS -t TOKENIZER, show SHARDS.
    """


def main() -> None:
    """Run the command line. Exit codes: 0 clean, 1 findings or too many skipped, 2 could not run."""
    from tracemask.core.errors import MissingExtra, TracemaskError, UsageError

    for stream in (sys.stdout, sys.stderr):  # a terminal that lacks a character gets its escape, not a traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(app(prog_name="tracemask", standalone_mode=False) or 0)
    except Misused as error:
        _misused(error)
        sys.exit(2)
    except TracemaskError as error:
        from tracemask_cli.output import fail

        fail(error)
        sys.exit(2)
    except ModuleNotFoundError as error:
        from tracemask_cli.output import fail

        package = (error.name or "").partition(".")[0]
        if package in EXTRAS:
            fail(MissingExtra.named(package, EXTRAS[package]))
        else:
            traceback.print_exc()
        sys.exit(2)
    except OSError as error:
        from tracemask_cli.output import fail

        where, what = str(error.filename or ""), error.strerror or str(error)
        fail(UsageError("TM932", where=where, what=f"cannot read or write: {what}", fix="check path, rights and disk"))
        sys.exit(2)
    except Exception:  # a fault of ours: shown whole, and never the exit code that means findings
        traceback.print_exc()
        sys.exit(2)


def _misused(error: Any) -> None:
    """One coded line for what the command line itself does not understand; the help where nothing was given."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return
    from tracemask.core.errors import UsageError
    from tracemask_cli.output import fail

    path = error.ctx.command_path if error.ctx is not None else "tracemask"
    what = error.format_message().rstrip(".")
    fail(UsageError("TM900", where=path, what=what[:1].lower() + what[1:], fix=f"`{path} --help` shows what it takes"))


if __name__ == "__main__":
    main()
