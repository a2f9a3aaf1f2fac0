"""The loss engine: components with their own denominators over selected targets. Imports torch when a name is used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracemask.core.lazy import names

if TYPE_CHECKING:
    from tracemask.loss.batch import Batch
    from tracemask.loss.denominators import advantages_of
    from tracemask.loss.engine import counts_after_rejection, from_hidden
    from tracemask.loss.lm_head.reference import head_logprobs
    from tracemask.loss.logprobs import from_logprobs, step_counts
    from tracemask.loss.output import LossOutput
    from tracemask.loss.terms import TermInputs, TermResult, term

_HOME = {
    "Batch": "tracemask.loss.batch",
    "LossOutput": "tracemask.loss.output",
    "TermInputs": "tracemask.loss.terms",
    "TermResult": "tracemask.loss.terms",
    "advantages_of": "tracemask.loss.denominators",
    "counts_after_rejection": "tracemask.loss.engine",
    "from_hidden": "tracemask.loss.engine",
    "from_logprobs": "tracemask.loss.logprobs",
    "head_logprobs": "tracemask.loss.lm_head.reference",
    "step_counts": "tracemask.loss.logprobs",
    "term": "tracemask.loss.terms",
}

__all__ = [
    "Batch",
    "LossOutput",
    "TermInputs",
    "TermResult",
    "advantages_of",
    "counts_after_rejection",
    "from_hidden",
    "from_logprobs",
    "head_logprobs",
    "step_counts",
    "term",
]

__getattr__ = names(__name__, _HOME)
