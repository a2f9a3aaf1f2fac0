"""tracemask rules: the table of lint rules."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    select: Annotated[list[str] | None, typer.Argument(help="Codes, prefixes or names (default: all).")] = None,
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the lint rules: code, severity, needs, name, what each does.

    Needs: I ids, M mask or labels, K tokenizer, T template, S messages or authors, L log-probs, P log-probs of a model,
    G rewards and groups, W weights, X positions, A attention mask, V evaluation set, B row budget.
    """
    from tracemask.check.rule import all_rules, matching
    from tracemask_cli.output import listing

    wanted = matching(select) if select else set(all_rules())
    rules = [rule for code, rule in all_rules().items() if code in wanted]
    if json:
        from tracemask_cli.output import print_json

        print_json([
            {"code": rule.code, "name": rule.name, "severity": rule.severity.value,
             "needs": [need.letter for need in rule.needs], "summary": rule.summary}
            for rule in rules
        ])  # fmt: skip
        return
    listing([(f"{r.code} {r.severity.value} {r.letters:<8} {r.name:<30} ", r.summary) for r in rules])
