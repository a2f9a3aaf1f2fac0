"""Numbers that several rooms must agree on. Knows nothing else."""

from __future__ import annotations

LOGPROB_CEILING = 1e-4  # nats: a log-prob this far above 0 is rounding of a softmax, more is an error (TM404)
IGNORED = -100  # the label that trains nothing, in torch's cross-entropy and everywhere since
