"""Rules about columns that should be as long as the ids."""

from __future__ import annotations

from collections.abc import Iterator

from tracemask.check.finding import ERROR, Finding
from tracemask.check.rule import Need, rule
from tracemask.check.view import View


@rule("TM101", "length-mismatch", ERROR, needs=(Need.IDS,))
def length_mismatch(view: View) -> Iterator[Finding]:
    """A per-token column of a row is not as long as its ids.

    **What it does.** Compares the length of every per-token column (mask, labels, log-probs, …) with the number of
    ids of the same row. The other rules about tokens leave such a row out.

    **Why it is bad.** Code that zips the lists cuts silently at the shortest; from the first missing entry on, every
    mask and log-prob belongs to another token.

    **Example.** 12 ids, 11 mask entries and 11 log-probs: the stop token was counted in one list only.

    **How to fix.** Write all columns from one loop over tokens. `tracemask convert` refuses such a row.

    **Limits.** Two lists that are wrong by the same number of tokens are not seen here; see TM302 and TM402.
    """
    for row, lengths in view.block.ragged.items():
        ids = lengths.get("token_ids", 0)
        others = ", ".join(f"{name} {length}" for name, length in sorted(lengths.items()) if length != ids)
        shortest = min(lengths.values())
        yield view.block.finding(
            "TM101", row, f"{ids} ids, but {others}", token=shortest, lengths=dict(sorted(lengths.items()))
        )
