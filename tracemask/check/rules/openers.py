"""Rules about what surrounds a reply: prefills, missing openers, glued tokens, missing separators, wrong stops."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracemask.check.finding import ERROR, WARNING, Finding
from tracemask.check.rule import Need, rule
from tracemask.check.turns import matches
from tracemask.check.view import View

TEMPLATED = (Need.IDS, Need.MASK, Need.TOKENIZER, Need.TEMPLATE)


def prefilled(view: View) -> np.ndarray:
    """bool[N]: tokens that the template's generation prompt writes behind the assistant's opener; once a block."""
    facts = view.block.facts
    if "prefilled" not in facts:
        flags = np.zeros(len(view.block), dtype=bool)
        extra = view.grammar.prefill if view.run.grammar is not None else ()
        if extra:
            body = view.turns.body[view.turns.replies]
            for start in body[matches(view.block, body, extra)].tolist():
                flags[start : start + len(extra)] = True
        facts["prefilled"] = flags
    return facts["prefilled"]


@rule("TM106", "prefill-counted-as-sampled", ERROR, needs=TEMPLATED)
def prefill_sampled(view: View) -> Iterator[Finding]:
    """What the generation prompt writes for the policy is in the loss.

    **What it does.** Learns from the template what follows the assistant's opener in a generation prompt (as
    `<think>\\n`), and looks for such tokens in the mask.

    **Why it is bad.** The policy never chose them; their log-probs are missing or made up, and the ratio is not one.

    **Example.** The template prefills `<think>\\n`; the mask begins right behind the opener.

    **How to fix.** Begin the mask where the prompt given to the engine ends.

    **Limits.** A reply that samples the same tokens without a prefill needs its own template arguments here.
    """
    places = np.flatnonzero(prefilled(view) & view.trained & ~view.upset[view.block.row_of])
    yield from view.block.each("TM106", places, "{n} prefilled token{s} in the loss")


@rule("TM210", "header-not-found", ERROR, needs=TEMPLATED)
def header_not_found(view: View) -> Iterator[Finding]:
    """A row trains tokens but holds no opener of an assistant's turn.

    **What it does.** Looks for the template's assistant opener anywhere in a row that has a mask.

    **Why it is bad.** Either the row was made with another template, or the prompt was cut away and the policy is
    trained on replies without their context.

    **Example.** Rows of completions only; a Llama 3 dataset checked with a ChatML template.

    **How to fix.** Give the template that made the rows (`--template`), or keep the prompts.

    **Limits.** Templates without any added token in their openers cannot be recognised; the rule then does not run.
    """
    block = view.block
    has = np.zeros(len(block.rows), dtype=bool)
    has[view.turns.row[view.turns.replies]] = True
    trained = np.bincount(block.row_of[view.trained], minlength=len(block.rows)) > 0
    lost = trained & ~has & ~view.wrong_vocabulary
    for row in np.flatnonzero(lost).tolist():
        mask = view.trained[block.offsets[row] : block.offsets[row + 1]]
        yield block.finding("TM210", row, "no opener of an assistant's turn in this row", token=int(np.argmax(mask)))


@rule("TM211", "token-spans-two-authors", WARNING, needs=(Need.IDS, Need.TOKENIZER, Need.TEMPLATE))
def token_spans_two_authors(view: View) -> Iterator[Finding]:
    """One token holds the end of an opener and the beginning of a reply.

    **What it does.** At each assistant's opener, looks for a token that begins with the opener's white space and goes
    on with text of the reply.

    **Why it is bad.** No sampler emits that token: the prompt ends inside it. Whatever the mask says about it is wrong.

    **Example.** Llama 3's `\\n\\n` and a reply that begins with a newline, encoded at once: one token `\\n\\n\\n`.

    **How to fix.** Encode prompt and reply apart; `tracemask convert` cuts at both edges of every sampled region.

    **Limits.** Between other turns such tokens are normal (and belong to the author of their first byte).
    """
    lens, block, turns = view.lens, view.block, view.turns
    tails = {opener.ids: opener.tail for opener in view.grammar.openers}
    longest = {ids: b"".join(lens.tokenizer.id_table[token] for token in tail) for ids, tail in tails.items() if tail}
    places = []
    for i in turns.replies[~turns.exact[turns.replies]].tolist():
        body = int(turns.body[i])
        if body >= turns.end[i]:
            continue
        opener = tuple(block.ids[turns.at[i] : body].tolist())
        white = longest.get(opener, b"")
        token = lens.tokenizer.id_table[int(view.safe[body])]
        if white and token.startswith(white) and len(token) > len(white):
            places.append(body)
    yield from block.each("TM211", np.array(sorted(places), dtype=np.int64), "{n} token{s} of opener and reply in one")


@rule("TM319", "separator-missing", WARNING, needs=(Need.IDS, Need.TOKENIZER, Need.TEMPLATE))
def separator_missing(view: View) -> Iterator[Finding]:
    """What the template writes between a reply's stop and the next turn is missing.

    **What it does.** Learns the separator from the template (ChatML: a newline) and looks for turns that follow a stop
    directly.

    **Why it is bad.** The context differs from what the model saw in training at every turn, by one token. Typical of
    agent loops that append ids by hand.

    **Example.** `<|im_end|><|im_start|>user` instead of `<|im_end|>\\n<|im_start|>user`.

    **How to fix.** Append the separator to the context after each sampled stop (`Renderer.next_prompt_ids` does).

    **Limits.** If your engine runs without it all the time, training without it is consistent: ignore with that reason.
    """
    separator, turns, block = view.grammar.separator, view.turns, view.block
    if not separator or view.grammar.opener_stops or not len(turns.at):
        return
    replies = turns.replies
    stop, end = turns.stop[replies], turns.end[replies]
    ended = (stop >= 0) & ~np.isin(end, view.edges)
    ended &= block.ids[np.maximum(stop, 0)] == view.grammar.reply_stop
    bare = end[ended & (stop + 1 == end)]
    bare = bare[~view.wrong_vocabulary[block.row_of[bare]]]
    yield from block.each("TM319", bare, "{n} turn{s} follow a stop without the template's separator")


@rule("TM315", "trained-stop-is-not-the-generation-stop", WARNING, needs=(Need.IDS, Need.MASK, Need.TOKENIZER))
def other_stop(view: View) -> Iterator[Finding]:
    """A trained turn ends with a special token that generation does not stop at.

    **What it does.** Looks at the last token of each trained span: a special token outside the stop set.

    **Why it is bad.** The policy learns to end with a token that the engine ignores: it talks on until the limit.

    **Example.** Rows end with `<|endoftext|>`, the engine stops at `<|im_end|>`.

    **How to fix.** Train the stop that the engine uses, or add this one to the engine's stop ids (and to
    `generation_config.json`, from which this rule reads them).

    **Limits.** Stops that are set per request only are unknown here; ignore the rule with that reason.
    """
    block, lens = view.block, view.lens
    start, end = block.spans(view.trained)
    if not len(start):
        return
    last = end - 1
    stops = view.grammar.stops if view.run.grammar is not None else lens.stops
    flagged = lens.special[view.safe[last]] & ~np.isin(block.ids[last], list(stops))
    flagged &= ~view.upset[block.row_of[last]]
    if view.author is not None:
        flagged &= view.policy[last]
    yield from block.each("TM315", last[flagged], "{n} turn{s} end with a special token that is no stop")
