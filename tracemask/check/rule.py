"""What a rule is: a decorated function with a code, needs, and a docstring that is its page. Knows no dataset."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import import_module
from typing import Any

from tracemask.check.finding import Finding, Severity
from tracemask.core.errors import UsageError


class Need(Enum):
    """An input that a rule cannot do without: its letter, what it is, and how to supply it."""

    IDS = ("I", "token ids", "give the column of ids with --columns ids=NAME")
    MASK = ("M", "a mask or labels", "give the column with --columns mask=NAME or labels=NAME")
    LABELS = ("M", "labels", "give the column with --columns labels=NAME")
    TOKENIZER = ("K", "a tokenizer", "--tokenizer PATH")
    TEMPLATE = ("T", "a chat template", "--tokenizer PATH with a chat template, or --template FILE")
    SPANS = ("S", "authors of tokens", "shards of tracemask convert, or a tokenizer with a chat template")
    MESSAGES = ("S", "messages", "check the rollout log itself, or pass it with --traces")
    RENDERED = ("T,S", "what the renderer noted", "shards of tracemask convert, or the rollout log with --tokenizer")
    LOGPROBS = ("L", "log-probs", "a log-prob column (--columns logprob=NAME)")
    SCORES = ("P", "log-probs of a model", "tracemask score DATASET --model PATH")
    REWARDS = ("G", "rewards", "a scalar reward")
    GROUPS = ("G", "groups", "a scalar group_id")
    ADVANTAGES = ("G", "advantages", "a scalar advantage")
    WEIGHTS = ("W", "weight columns", "tracemask materialize DATASET --recipe NAME")
    DENOMINATORS = ("W", "denominator columns", "tracemask materialize DATASET --recipe NAME")
    DOCUMENTS = ("X", "where packed documents begin", "a column position_ids, seq_lengths, cu_seqlens or seq_idx")
    ATTENTION = ("A", "an attention mask", "a column attention_mask")
    ENTROPY = ("L", "entropies", "a column entropy")
    EVAL = ("V", "an evaluation set", "--eval PATH")
    BUDGET = ("B", "a row budget", "--max-tokens N")

    @property
    def letter(self) -> str:
        """The letter used in the table of rules."""
        return self.value[0]

    @property
    def label(self) -> str:
        """What is missing, in words."""
        return self.value[1]

    @property
    def remedy(self) -> str:
        """How to supply it."""
        return self.value[2]


class Scope(Enum):
    """What a rule is called with."""

    BLOCK = "block"  # check(block, run), once per block of rows
    DATASET = "dataset"  # check(run), once, after all rows
    TRACE = "trace"  # check(trace, run), once per trace of a rollout log


@dataclass(frozen=True)
class Rule:
    """One rule. `check` yields findings; `finish(run)` does so after all rows, where a rule needs the whole dataset."""

    code: str
    name: str
    severity: Severity
    needs: tuple[Need, ...]
    scope: Scope
    check: Callable[..., Iterable[Finding]]
    finish: Callable[[Any], Iterable[Finding]] | None = None

    @property
    def doc(self) -> str:
        """The rule's page in Markdown, without its title."""
        return inspect.cleandoc(self.check.__doc__ or "")

    @property
    def summary(self) -> str:
        """The first sentence of the page."""
        return re.split(r"(?<=[.?!])\s", self.doc.replace("\n", " "), maxsplit=1)[0]

    @property
    def letters(self) -> str:
        """The needs as letters, as in the table of rules."""
        return ",".join(dict.fromkeys(letter for need in self.needs for letter in need.letter.split(",")))


def rule(
    code: str,
    name: str,
    severity: Severity,
    *,
    needs: Iterable[Need] = (),
    scope: Scope = Scope.BLOCK,
    finish: Callable[[Any], Iterable[Finding]] | None = None,
) -> Callable[[Callable[..., Iterable[Finding]]], Rule]:
    """Make a rule of a function; its docstring becomes its page."""

    def decorate(function: Callable[..., Iterable[Finding]]) -> Rule:
        return Rule(code, name, severity, tuple(needs), scope, function, finish)

    return decorate


@cache
def all_rules() -> dict[str, Rule]:
    """Every rule by code, in code order."""
    from tracemask.check.rules import SUBJECTS

    found: dict[str, Rule] = {}
    for subject in SUBJECTS:
        for value in vars(import_module(f"tracemask.check.rules.{subject}")).values():
            if isinstance(value, Rule):
                assert found.get(value.code, value) is value, f"two rules {value.code}"
                found[value.code] = value
    return dict(sorted(found.items()))


def matching(selectors: Iterable[str]) -> set[str]:
    """Codes of the rules that start with one of `selectors` or bear one as their name. UsageError TM902: none does."""
    chosen: set[str] = set()
    for selector in selectors:
        wanted = selector.strip()
        hits = {
            code for code, each in all_rules().items() if code.startswith(wanted.upper()) or each.name == wanted.lower()
        }
        if not hits or not wanted:
            raise UsageError("TM902", what=f"no rule starts with {selector!r}", fix="tracemask rules lists them")
        chosen |= hits
    return chosen
