"""What a run of check knows: tokenizer, grammar, options, what rules tally across blocks. Knows no rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tracemask.check.lens import Lens

if TYPE_CHECKING:
    from tracemask.check.grammar import Grammar
    from tracemask.render.template import Template
    from tracemask.render.tokenizer import Tokenizer

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Options:
    """Knobs of single rules. max_tokens: the trainer's row budget. group_size: rollouts a task should have.

    pre_shifted: labels[t] names token t + 1 on purpose. eval_path: a dataset that training must not overlap.
    """

    max_tokens: int | None = None
    group_size: int | None = None
    pre_shifted: bool = False
    eval_path: str | None = None


@dataclass
class Run:
    """One run over one dataset. Rules keep what they count in `state(code, factory)`."""

    kind: str = "tracemask"
    metadata: dict[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    template: Template | None = None
    other_template: bool = False  # the rows were rendered with a template that is not here
    options: Options = field(default_factory=Options)
    dataset: Any = None
    shards: tuple[str, ...] = ()
    _state: dict[str, Any] = field(default_factory=dict)

    def state(self, key: str, factory: Callable[[], S]) -> S:
        """The tally under `key`, made by `factory` on first use."""
        if key not in self._state:
            self._state[key] = factory()
        return self._state[key]

    @cached_property
    def lens(self) -> Lens | None:
        """Tables of the tokenizer, None without one."""
        return Lens(self.tokenizer) if self.tokenizer is not None else None

    @cached_property
    def grammar(self) -> Grammar | None:
        """The shape of turns: from the template; without one, from the names of added tokens; else None."""
        from tracemask.check.grammar import guess, learn, template_render

        if self.lens is None or self.other_template:
            return None
        if self.template is not None:  # a template that cannot be learned is not another family's
            return learn(self.lens, template_render(self.template))
        return guess(self.lens)

    @property
    def ours(self) -> bool:
        """The dataset was written by tracemask: authors are stored, not inferred."""
        return self.kind == "tracemask"
