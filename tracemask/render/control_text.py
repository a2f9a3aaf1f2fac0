"""Text that reads like a control token and is none of the template's: what became of it. Knows no row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tracemask.core.finding import Finding, Place
from tracemask.core.vocab import Origin
from tracemask.render.encode import Encoder, Mode
from tracemask.render.stream import Base
from tracemask.render.tokenizer import Tokenizer


def control_findings(bases: Sequence[Base], encoder: Encoder, tokenizer: Tokenizer) -> list[Finding]:
    """One finding a message and token over several renders of one branch."""
    found: dict[tuple[str, int, int], Finding] = {}
    for base in bases:
        for finding in _of_base(base, encoder, tokenizer):
            key = (finding.code, finding.place.turn or 0, int(str(finding.data["id"])))
            found.setdefault(key, finding)
    return list(found.values())


def _of_base(base: Base, encoder: Encoder, tokenizer: Tokenizer) -> Iterator[Finding]:
    """TM207: special-token text in policy text, or real control ids in content; TM208: control text kept as text."""
    for position, run in base.suspicious:
        for token in encoder.get(run).found:
            if run.mode is Mode.POLICY and token not in tokenizer.special_ids:
                continue
            content = tokenizer.added[token].content
            at = position + max(run.text.find(content), 0)
            row = int(base.labels.rows_at(np.array([at]))[0])
            code = "TM208" if run.mode is Mode.CONTENT else "TM207"
            fate = "became a control token" if run.mode is Mode.IDS else "stays ordinary text"
            what = f"{content!r} in {Origin(int(base.labels.origin[row])).label} {fate}"
            yield Finding(code, what, Place(turn=int(base.labels.message[row])), data={"id": token})
