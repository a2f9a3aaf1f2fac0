"""Rules about lengths and packing: documents in one row, limits, budgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tracemask.check.context import Run
from tracemask.check.finding import ERROR, WARNING, Finding, Place
from tracemask.check.padding import hidden_by_attention
from tracemask.check.rule import Need, rule
from tracemask.check.rules.prefix import open_ended
from tracemask.check.view import View
from tracemask.core.vocab import Role


@rule("TM504", "packing-boundary", ERROR, needs=(Need.IDS, Need.DOCUMENTS))
def packing_boundary(view: View) -> Iterator[Finding]:
    """Packed documents are not kept apart.

    **What it does.** Reads where documents begin: `position_ids` (which must rise by one or start again at 0), lengths
    (`seq_lengths`), cumulative lengths (`cu_seqlens`), numbers (`seq_idx`, or an attention mask that counts documents).
    Reports jumps, lengths that do not fill the row, columns that disagree, documents that begin (with bos or a system
    turn) where no column says so, and documents whose first token is in the loss.

    **Why it is bad.** Without a reset, a document attends to the one before it and sits at wrong positions. A first
    token in the loss is predicted from the end of another document.

    **Example.** Two chats joined with positions 0…n; labels copied from ids without masking each first token.

    **How to fix.** Restart positions (or pass `cu_seqlens`) at each document; set each first label to −100.

    **Limits.** Documents without bos and without a system turn cannot be seen where no column says so. Padding is not
    judged.
    """
    block = view.block
    inner = np.zeros(len(block), dtype=bool)
    inner[1:] = (block.row_of[1:] == block.row_of[:-1]) & ~view.padding[:-1]
    inner &= ~_unseen(view)
    yield from _jumps(view, inner)
    found = view.documents
    for row, text in found.broken:
        yield block.finding("TM504", row, text, token=0, cause="lengths")
    apart = np.flatnonzero(found.disagree & inner)
    yield from block.each("TM504", apart, "columns disagree on where {n} document{s} begin", cause="columns disagree")
    begins = _beginnings(view) & inner & ~found.fresh & found.stated[block.row_of]
    yield from block.each("TM504", np.flatnonzero(begins), "a document begins and positions go on", cause="no reset")
    if view.mask is not None:
        first = np.flatnonzero(inner & found.fresh & view.mask)
        yield from block.each("TM504", first, "{n} document{s} with the first token in the loss", cause="first label")


def _unseen(view: View) -> np.ndarray:
    """bool[N]: padding, and what the attention mask hides."""
    hidden = hidden_by_attention(view.block)
    return view.padding if hidden is None else view.padding | hidden


def _jumps(view: View, inner: np.ndarray) -> Iterator[Finding]:
    positions = view.block.column("position_ids")
    if positions is None:
        return
    step = np.zeros(len(view.block), dtype=np.int64)
    step[1:] = positions[1:].astype(np.int64) - positions[:-1]
    unseen = _unseen(view)
    inner = inner.copy()
    inner[1:] &= ~unseen[:-1]
    yield from view.block.each(
        "TM504", np.flatnonzero(inner & (step != 1) & (positions != 0)), "position ids jump", cause="jump"
    )


def _beginnings(view: View) -> np.ndarray:
    """bool[N]: tokens that begin a document: bos, or a system turn where there is no bos."""
    flags = np.zeros(len(view.block), dtype=bool)
    lens = view.run.lens
    if lens is None:
        return flags
    if lens.bos is not None and (view.block.ids == lens.bos).any():
        flags |= view.block.ids == lens.bos
        flags[1:] &= view.block.ids[:-1] != lens.bos
        return flags
    if view.run.grammar is not None:
        turns, system = view.turns, view.turns.role == Role.SYSTEM
        first = system & ~np.concatenate([[False], system[:-1]])  # gpt-oss has two system turns in a row
        flags[turns.at[first]] = True
    return flags


@dataclass
class Cuts:
    """The longest row, and the rows of each length that end inside a reply."""

    longest: int = 0
    unstopped: dict[int, list[Place]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)


def _cuts_finish(run: Run) -> Iterator[Finding]:
    cuts = run.state("TM505", Cuts)
    count = cuts.counts.get(cuts.longest, 0)
    if count >= 2 and cuts.longest >= 64:
        text = f"{count} rows are cut at {cuts.longest:,} tokens, the longest length, inside a reply"
        yield Finding("TM505", text, cuts.unstopped[cuts.longest][0], data={"rows": count, "length": cuts.longest})


@rule("TM505", "lost-to-length-limit", WARNING, needs=(Need.IDS, Need.MASK, Need.TOKENIZER), finish=_cuts_finish)
def lost_to_limit(view: View) -> Iterator[Finding]:
    """Several rows end inside a reply at exactly the longest length: a limit cut them.

    **What it does.** Looks for two or more rows of the maximal length that end without a stop.

    **Why it is bad.** What was cut away is the end: answers, stops and the part that the reward was given for.

    **Example.** `max_length=4096` with silent truncation in the collator that wrote the file.

    **How to fix.** Raise the limit, or leave out rows that do not fit, and count them.

    **Limits.** Rows that the engine itself stopped at its limit look the same, and are TM107 too.
    """
    cuts, block = view.run.state("TM505", Cuts), view.block
    if view.run.grammar is None or not len(block):
        return iter(())
    padding = np.bincount(block.row_of[view.padding], minlength=len(block.rows))
    sizes = block.sizes - padding
    longest = int(sizes.max())
    if longest > cuts.longest:
        cuts.longest, cuts.unstopped, cuts.counts = longest, {}, {}
    places = open_ended(view)
    ends = places + 1 - block.offsets[:-1][block.row_of[places]] == sizes[block.row_of[places]]
    for row in block.row_of[places[ends & (sizes[block.row_of[places]] == cuts.longest)]].tolist():
        cuts.counts[cuts.longest] = cuts.counts.get(cuts.longest, 0) + 1
        place = block.finding("TM505", row, "", token=cuts.longest - 1).place
        cuts.unstopped.setdefault(cuts.longest, [place])
    return iter(())


@rule("TM602", "document-longer-than-row", ERROR, needs=(Need.IDS, Need.BUDGET))
def longer_than_budget(view: View) -> Iterator[Finding]:
    """A row has more tokens than the trainer's budget.

    **What it does.** Compares lengths with `--max-tokens`.

    **Why it is bad.** The row is refused, cut or skipped when it is packed; cutting loses the end of the rollout.

    **Example.** A 40,000-token rollout for batches of 32,768.

    **How to fix.** Raise the budget, or choose in training what happens to such rows: error, truncate, skip.

    **Limits.** Shared prefixes may make several rows fit together; this looks at single rows.
    """
    limit = view.run.options.max_tokens
    assert limit is not None
    for row in np.flatnonzero(view.block.sizes > limit).tolist():
        yield view.block.finding(
            "TM602", row, f"{int(view.block.sizes[row]):,} tokens, the budget is {limit:,}", token=limit
        )
