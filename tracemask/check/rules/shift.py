"""Rules about where trained spans begin and end: each span votes by the opener before it and the stop at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracemask.check.context import Run
from tracemask.check.finding import ERROR, WARNING, Finding, Place
from tracemask.check.rule import Need, rule
from tracemask.check.rules.rendering import notes, recorded
from tracemask.check.turns import NOWHERE
from tracemask.check.view import View
from tracemask.core.vocab import Role

VOTES = (Need.IDS, Need.MASK, Need.TOKENIZER, Need.TEMPLATE)


def settled(view: View) -> np.ndarray:
    """bool per span: the row's mask is not wrong as a whole, so the span's own edges count."""
    return ~view.upset[view.votes.row] if len(view.votes.row) else np.zeros(0, dtype=bool)


@rule("TM302", "mask-shifted", ERROR, needs=VOTES)
def mask_shifted(view: View) -> Iterator[Finding]:
    """The whole mask of a row lies one or two tokens too early or too late.

    **What it does.** Each trained span votes: how far is its start from the end of the turn's opener, and how far is
    its end from the turn's stop token? Where both say the same distance the span is shifted; where most spans of the
    row do, the row's other findings about edges are left out. Spans that touch the row's end abstain, unless the other
    rows of the dataset have decided.

    **Why it is bad.** The count of trained tokens is right, the loss is plausible, and every stop token (shifted left)
    or first token (shifted right) is missing: models that never stop, or that learn the template's newline.

    **Example.** Labels shifted once in the dataset and once more in the loss.

    **How to fix.** Align: mask[t] speaks of token t. `tracemask fix --unsafe-fixes` moves it back.

    **Limits.** Needs a template (or a known family of added tokens) to know openers and stops.
    """
    block, votes = view.block, view.votes
    moved = votes.inside & (votes.head == votes.tail) & (votes.head != 0)
    judged = ~view.wrong_vocabulary & ~view.inverted
    some = np.bincount(votes.row[moved], minlength=len(block.rows)) > 0
    for row in np.flatnonzero(((view.shift != 0) | some) & judged).tolist():
        mine = np.flatnonzero(votes.row == row)
        d = int(view.shift[row]) or int(votes.head[mine[moved[mine]][0]])
        at = mine[votes.head[mine] == d] if view.shift[row] else mine[moved[mine] & (votes.head[mine] == d)]
        first = int(votes.start[at[0]] - block.offsets[row])
        side = "left" if d < 0 else "right"
        of = "" if view.shift[row] else f" of {len(mine)}"
        text = f"the mask is shifted by {d:+d} ({side}) in {len(at)}{of} span{'s' if len(mine) != 1 else ''}"
        yield block.finding("TM302", row, text, token=first if d < 0 else first - d, cause=f"shift {d:+d}",
                            shift=d, spans=len(at))  # fmt: skip


@dataclass
class Stops:
    """Spans with a trained stop, spans whose stop is not trained, and the first of the latter."""

    trained: int = 0
    untrained: int = 0
    first: Place | None = None


def _stops_finish(run: Run) -> Iterator[Finding]:
    seen = run.state("TM305", Stops)
    if seen.first is not None and not seen.trained and seen.untrained >= 3:
        yield Finding(
            "TM305",
            f"no stop token is trained in {seen.untrained} turns that end with one",
            seen.first,
            cause="every turn",
        )


@rule("TM305", "stop-untrained", ERROR, needs=VOTES, finish=_stops_finish)
def stop_untrained(view: View) -> Iterator[Finding]:
    """A turn is trained but the stop token that ends it is not.

    **What it does.** Looks for trained spans whose turn's stop stands right behind them, outside the mask.

    **Why it is bad.** The policy never learns to end its turn; generations run to the length limit. Classic cause:
    padding is masked by `id == pad` and pad equals eos.

    **Example.** `…delayed.` is trained, the `<|im_end|>` behind it has label −100.

    **How to fix.** Extend the mask over the stop. `tracemask fix` does so.

    **Limits.** A stop that nobody sampled (a cut-off turn that the template closed) is rightly untrained: in our shards
    the author says so; in other data, a row that trains some stops and not others is a warning only.
    """
    block, votes = view.block, view.votes
    if not len(votes.start):
        return
    ok = settled(view)
    missed = ok & (votes.tail == -1) & ((votes.head == 0) | (votes.head == NOWHERE)) & ~votes.touches
    kept = ok & (votes.tail == 0)
    if view.stored_authors:
        mine = view.policy[np.minimum(votes.end, len(block) - 1)]
        seen = view.run.state("TM305", Stops)
        seen.trained += int(kept.sum())
        closed = np.flatnonzero(missed & ~mine)
        seen.untrained += len(closed)
        if seen.first is None and len(closed):
            row = int(votes.row[closed[0]])
            token = int(votes.end[closed[0]] - block.offsets[row])
            seen.first = block.finding("TM305", row, "", token=token).place
        missed &= mine
        mixed = np.zeros(len(block.rows), dtype=bool)
    else:
        mixed = np.bincount(votes.row[kept & ~votes.touches], minlength=len(block.rows)) > 0
    for row, token, count in block.first_per_row(votes.end[missed]):
        unsure = " (or the turn was cut off)" if mixed[row] else ""
        text = f"{count} turn{'s' if count > 1 else ''} trained without the stop token{unsure}"
        yield block.finding("TM305", row, text, token=token, severity=WARNING if mixed[row] else None, turns=count)


@rule("TM309", "first-token-dropped", ERROR, needs=VOTES)
def first_token_dropped(view: View) -> Iterator[Finding]:
    """A turn is trained from its second token on.

    **What it does.** Looks for spans that start one token behind the turn's opener and end rightly with its stop.

    **Why it is bad.** The first token decides how a reply begins (a tool call or an answer); it is never trained.

    **Example.** Log-probs computed from the reply alone have none for its first token, and the mask followed.

    **How to fix.** Compute log-probs with the prompt in front; train from the first sampled token.

    **Limits.** A prefilled first token is rightly untrained where the template's generation prompt writes it. A row's
    only turn, which ends with the row, looks the same where its mask is shifted to the right and cut by the row's end.
    """
    votes = view.votes
    flagged = settled(view) & (votes.head == 1) & (votes.tail == 0)
    if view.stored_authors and len(votes.start):
        flagged &= view.policy[votes.start - 1]
    if view.grammar.prefill and len(votes.start):
        flagged &= view.block.ids[np.maximum(votes.start - 1, 0)] != view.grammar.prefill[0]
    yield from view.block.each("TM309", votes.start[flagged] - 1, "{n} turn{s} trained without the first token")


@rule("TM310", "template-tail-trained", WARNING, needs=(Need.IDS, Need.MASK, Need.TOKENIZER))
def template_tail_trained(view: View) -> Iterator[Finding]:
    """What the template writes after a turn's stop token is in the loss.

    **What it does.** Looks for trained tokens between a reply's stop and the next turn that are white space.

    **Why it is bad.** Nobody samples the newline after `<|im_end|>`: generation ends at the stop. Training it wastes a
    target per turn and skews every mean over tokens.

    **Example.** `<|im_end|>` and `\\n` both have labels.

    **How to fix.** End the mask with the stop. `tracemask fix` does so.

    **Limits.** Text other than white space after a stop is TM317.
    """
    if view.run.grammar is None or view.author is None:
        return
    tails = tail_tokens(view)
    places = np.flatnonzero(tails & view.trained & ~view.upset[view.block.row_of])
    yield from view.block.each("TM310", places, "{n} token{s} after a stop in the loss: the template wrote them")


def after_stop(view: View) -> np.ndarray:
    """bool[N]: tokens of an assistant's turn behind its first stop; computed once a block."""
    facts = view.block.facts
    if "after stop" not in facts:
        flags = np.zeros(len(view.block) + 1, dtype=np.int32)
        if view.run.grammar is not None and not view.run.grammar.opener_stops:
            turns = view.turns
            chosen = turns.replies[turns.stop[turns.replies] >= 0]
            np.add.at(flags, turns.stop[chosen] + 1, 1)
            np.add.at(flags, turns.end[chosen], -1)
        facts["after stop"] = np.cumsum(flags)[:-1] > 0
    return facts["after stop"]


def tail_tokens(view: View) -> np.ndarray:
    """bool[N]: white space directly behind the stop of an assistant's turn."""
    facts = view.block.facts
    if "tail tokens" not in facts:
        behind = after_stop(view)
        blank = np.zeros(view.lens.size, dtype=bool)
        present = np.unique(view.safe[behind]) if behind.any() else []
        for token in present:
            raw = view.lens.tokenizer.id_table[int(token)]
            blank[token] = bool(raw) and not raw.strip() and not view.lens.special[token]
        white = behind & blank[view.safe]
        broken = np.cumsum(behind & ~white)  # white space counts up to the first other token of the turn
        starts, ends = view.block.spans(behind)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if broken[end - 1] != (broken[start - 1] if start else 0):
                first = start + int(np.argmax(~white[start:end]))
                white[first:end] = False
        facts["tail tokens"] = white
    return facts["tail tokens"]


@rule("TM317", "tokens-after-stop", ERROR, needs=(Need.IDS, Need.MASK, Need.TOKENIZER))
def tokens_after_stop(view: View) -> Iterator[Finding]:
    """A turn goes on after its stop token, and that text is trained.

    **What it does.** Looks for trained tokens behind the first stop of an assistant's turn, other than the white space
    that templates write there (TM310).

    **Why it is bad.** An engine stops at the stop token; what follows was never sampled in this place, or the log
    joined two replies. Training it teaches the policy to talk on.

    **Example.** `Done.<|im_end|>Also, …<|im_end|>` in one assistant turn.

    **How to fix.** Cut the turn at its first stop, or split it into two turns.

    **Limits.** Stops are the tokenizer's, the generation configuration's, and what the template writes after replies.
    """
    yield from recorded(view, "TM317")
    if view.run.grammar is None:
        return
    flagged = after_stop(view) & view.trained & ~tail_tokens(view) & ~view.upset[view.block.row_of]
    if view.stored_authors:
        flagged &= view.policy
    yield from view.block.each("TM317", np.flatnonzero(flagged), "{n} trained token{s} behind a stop in the same turn")


@rule("TM316", "turn-without-stop", WARNING, needs=VOTES)
def turn_without_stop(view: View) -> Iterator[Finding]:
    """A trained turn is followed by the next one without a stop token.

    **What it does.** Looks for assistant turns with trained tokens, not the last of their row, that hold no stop.

    **Why it is bad.** The policy learns that another speaker may begin in the middle of its turn.

    **Example.** Turns joined with the stop stripped: `…done.<|im_start|>user`.

    **How to fix.** Render turns with the template, which writes the stop; keep the sampled stop id in the log.

    **Limits.** The last turn of a row or a packed document may be cut off by the length limit; see TM107. Where neither
    a column nor a bos says where documents begin, a turn before a system turn, or in a row that has one inside, may be
    such a last turn: the finding says so.
    """
    yield from recorded(view, "TM316")
    turns, block = view.turns, view.block
    replies = turns.replies
    trained = np.concatenate([[0], np.cumsum(view.trained)])
    body, end = turns.body[replies], turns.end[replies]
    inner = ~np.isin(end, view.edges)
    said = [any(note.get("code") == "TM316" for note in row_notes) for row_notes in notes(view)]
    inner &= ~np.array(said, dtype=bool)[turns.row[replies]]
    bare = (turns.stop[replies] < 0) & inner & (trained[end] > trained[body]) & ~view.upset[turns.row[replies]]
    bare &= ~_ends_otherwise(view, end)
    bare, last = replies[bare], np.maximum(end[bare] - 1, 0)
    doubt = _may_end_document(view, bare)
    text = "{n} trained turn{s} without a stop before the next speaker"
    yield from block.each("TM316", last[~doubt], text)
    unknown = ", or a packed document ends there: no column says where documents begin"
    yield from block.each("TM316", last[doubt], text + unknown, cause="or a document's end")


def _may_end_document(view: View, chosen: np.ndarray) -> np.ndarray:
    """bool per chosen turn: the next may begin a packed document, and nothing in the row says whether it does."""
    turns, block = view.turns, view.block
    if view.stored_authors or not len(chosen):
        return np.zeros(len(chosen), dtype=bool)
    silent = ~view.documents.stated
    if view.lens.bos is not None:  # a row that begins with bos would have one at each document
        first = np.minimum(block.offsets[:-1], len(block) - 1)
        silent &= block.ids[first] != view.lens.bos
    system = turns.role == Role.SYSTEM
    inside = system[1:] & ~system[:-1] & (turns.row[1:] == turns.row[:-1])
    several = np.zeros(len(block.rows), dtype=bool)
    several[turns.row[1:][inside]] = True
    row, following = turns.row[chosen], turns.role[chosen + 1]
    return silent[row] & several[row] & np.isin(following, (Role.SYSTEM, Role.USER))


def _ends_otherwise(view: View, end: np.ndarray) -> np.ndarray:
    """bool per turn: its last trained token is special, so it has a stop, if not the right one (TM315)."""
    trained = np.flatnonzero(view.trained)
    if not len(trained):
        return np.zeros(len(end), dtype=bool)
    last = trained[np.maximum(np.searchsorted(trained, end) - 1, 0)]
    return view.lens.special[view.safe[last]]
