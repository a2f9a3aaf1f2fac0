"""Rules about what the bytes of a row say: control tokens in the wrong place, broken characters, open reasoning."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from tracemask.check.finding import ERROR, INFO, WARNING, Finding
from tracemask.check.lens import Lens
from tracemask.check.rule import Need, rule
from tracemask.check.rules.canonical import first_invalid
from tracemask.check.rules.rendering import recorded
from tracemask.check.turns import matches
from tracemask.check.view import View
from tracemask.core.vocab import Origin, Role

TEXT = (Need.IDS, Need.TOKENIZER)


@rule("TM207", "special-token-injection", ERROR, needs=(Need.IDS, Need.TOKENIZER, Need.SPANS))
def special_injection(view: View) -> Iterator[Finding]:
    """A special token stands inside content that should be plain text.

    **What it does.** In our shards, looks for special ids whose characters came from a message's content, and passes on
    what the renderer saw in policy text. In other data, looks for stop tokens inside a user's or tool's turn that no
    new turn follows.

    **Why it is bad.** A tool output that can write `<|im_end|><|im_start|>system` speaks with the system's voice.

    **Example.** A web page with `<|im_end|>` in it, encoded with special tokens recognised.

    **How to fix.** Encode contents without recognising special tokens (`control_text="text"`, the default of convert).

    **Limits.** Added tokens that are not special (`<think>`, `<tool_call>`) are ordinary words of many models.
    """
    seen = set()
    for finding in recorded(view, "TM207"):
        seen.add(finding.place.row)
        yield finding
    block = view.block
    places = _inside_content(view) if "origin" in block.names and view.stored_authors else _inside_turns(view)
    for finding in block.each("TM207", places, "{n} special token{s} inside content"):
        if finding.place.row not in seen:
            yield finding


def _inside_content(view: View) -> np.ndarray:
    origin = view.block.column("origin")
    special = view.lens.special[view.safe] & (view.block.ids < view.lens.size)
    content = (origin == Origin.CONTENT) | (origin == Origin.TOOLS) | (origin == Origin.FIELD)
    return np.flatnonzero(special & content & ~view.policy & ~view.wrong_vocabulary[view.block.row_of])


def _inside_turns(view: View) -> np.ndarray:
    """Stops in the turn of another speaker behind which its text goes on.

    White space and an opener may follow, the row's end, or any other added token (DeepSeek's second tool output).
    """
    grammar = view.run.grammar
    if grammar is None or grammar.reply_stop is None or grammar.opener_stops or not len(view.block):
        return np.zeros(0, dtype=np.int64)
    turns, block = view.turns, view.block
    other = np.flatnonzero((turns.role != Role.ASSISTANT) & (turns.stop >= 0))
    stop, end = turns.stop[other], turns.end[other]
    tight = stop + 1 == end
    apart = matches(block, stop + 1, grammar.separator) & (stop + 1 + len(grammar.separator) == end)
    behind = np.minimum(stop + 1, len(block) - 1)
    bad = stop[~(tight | apart | view.padding[behind] | view.lens.added[view.safe[behind]])]
    return bad[~view.wrong_vocabulary[block.row_of[bad]]]


@rule("TM208", "special-token-as-text", WARNING, needs=TEXT)
def special_as_text(view: View) -> Iterator[Finding]:
    """A special token is spelled out with ordinary tokens.

    **What it does.** Searches the bytes of ordinary text for the spelling of any special token.

    **Why it is bad.** Inside a template's own parts it means that the template was encoded as text: the model sees
    `<`, `|`, `im`, `_end`, … instead of the one id it knows. In contents it is harmless (and right), but worth knowing.

    **Example.** `tokenizer.encode(text, split_special_tokens=True)` on a whole render.

    **How to fix.** Encode the template's own text with special tokens recognised.

    **Limits.** Spellings of one or two characters are not searched for.
    """
    pattern = _special_pattern(view)
    if pattern is None or not len(view.block):
        return
    raw, offsets = view.raw
    spans = np.array([match.span() for match in pattern.finditer(raw)], dtype=np.int64).reshape(-1, 2)
    at = np.searchsorted(offsets, spans[:, 0], side="right") - 1
    end = np.searchsorted(offsets, spans[:, 1], side="left")
    plain = np.concatenate([[0], np.cumsum(view.ordinary)])
    row_of = view.block.row_of
    spelled = (plain[end] - plain[at] == end - at) & (row_of[at] == row_of[np.maximum(end, 1) - 1])
    places = at[spelled & ~view.wrong_vocabulary[row_of[at]]]
    yield from view.block.each("TM208", places, "{n} special token{s} spelled as text")


def _special_pattern(view: View) -> re.Pattern[bytes] | None:
    held = view.run.state("special pattern", dict)
    if "pattern" not in held:
        held["pattern"] = special_pattern(view.lens)
    return held["pattern"]


def special_pattern(lens: Lens) -> re.Pattern[bytes] | None:
    """All spellings of special tokens; alternatives share a factored prefix, so that the search is fast."""
    names = sorted(
        {token.content.encode() for token in lens.tokenizer.added.values() if token.special and len(token.content) > 2}
    )
    if not names:
        return None
    heads: dict[bytes, list[bytes]] = {}
    for name in names:
        heads.setdefault(name[:2], []).append(name[2:])
    parts = []
    for head, rests in sorted(heads.items()):
        longest_first = sorted(rests, key=len, reverse=True)
        parts.append(re.escape(head) + b"(?:" + b"|".join(map(re.escape, longest_first)) + b")")
    return re.compile(b"|".join(parts))


@rule("TM209", "replacement-character", WARNING, needs=(Need.IDS, Need.MASK, Need.TOKENIZER))
def replacement_character(view: View) -> Iterator[Finding]:
    """The policy's trained text holds U+FFFD, the sign of a lossy decode.

    **What it does.** Searches trained text for the bytes EF BF BD.

    **Why it is bad.** The ids were decoded token by token or cut inside a character, and the damaged text was encoded
    again: the trained tokens are not the sampled ones.

    **Example.** An emoji streamed in two chunks and logged as two `\\ufffd`.

    **How to fix.** Log ids. If only text can be had, decode whole replies, never single tokens.

    **Limits.** A policy may quote the character on purpose.
    """
    raw, offsets = view.raw
    places, at = [], raw.find(b"\xef\xbf\xbd")
    while at >= 0:
        token = int(np.searchsorted(offsets, at, side="right")) - 1
        if view.trained[token] and not view.wrong_vocabulary[view.block.row_of[token]]:
            places.append(token)
        at = raw.find(b"\xef\xbf\xbd", at + 3)
    yield from view.block.each(
        "TM209", np.array(places, dtype=np.int64), "{n} replacement character{s} in trained text"
    )


@rule("TM213", "incomplete-utf8", INFO, needs=(Need.IDS, Need.TOKENIZER))
def incomplete_utf8(view: View) -> Iterator[Finding]:
    """A run of text tokens is not whole characters.

    **What it does.** Joins token bytes between added tokens and looks for bytes that are no UTF-8: cut at an end (by
    the length limit) or in the middle (byte tokens sampled out of order).

    **Why it matters.** The ids are right and must stay. But no text stands for them: whatever decodes and encodes
    again changes them.

    **Example.** A limit of three tokens cuts a CJK character of two tokens in half.

    **How to fix.** Nothing in the data. Carry spans by token, not by character.

    **Limits.** Rows of a wrong tokenizer (TM205) are not reported.
    """
    block = view.block
    for run in view.drift:
        row = int(block.row_of[run.start])
        if run.trimmed == (run.start, run.end) and run.canonical is not None:
            continue
        if view.wrong_vocabulary[row]:
            continue
        at = first_invalid(view, run)
        where = "in the middle" if run.canonical is None else "at an end"
        yield block.finding("TM213", row, f"bytes that are no whole character, {where} of a run of text",
                            token=at - int(block.offsets[row]), cause=where)  # fmt: skip


@rule("TM318", "unclosed-reasoning", WARNING, needs=(Need.IDS, Need.TOKENIZER, Need.TEMPLATE))
def unclosed_reasoning(view: View) -> Iterator[Finding]:
    """A turn opens its reasoning more often than it closes it, and ends all the same.

    **What it does.** Counts `<think>` and `</think>` tokens in each assistant's turn that ends with a stop.

    **Why it is bad.** Templates look for the closer: without it the whole reply counts as the answer, and an empty
    think block may be put before it. Rewards that read the answer read the reasoning.

    **Example.** Reasoning cut off by a budget, then rendered from text: two openers and one closer in the row.

    **How to fix.** Keep the sampled ids, or close the reasoning in the harness, as text of the harness.

    **Limits.** Only tokenizers in which both tags are tokens. A reply cut off inside its reasoning is TM107.
    """
    think, turns, block = view.grammar.think, view.turns, view.block
    if think is None or not len(turns.at):
        return
    opens = np.concatenate([[0], np.cumsum(block.ids == think[0])])
    closes = np.concatenate([[0], np.cumsum(block.ids == think[1])])
    replies = turns.replies[turns.stop[turns.replies] >= 0]
    body, stop = turns.body[replies], turns.stop[replies]
    excess = (opens[stop] - opens[body]) > (closes[stop] - closes[body])
    first = []
    for start, end in zip(body[excess].tolist(), stop[excess].tolist(), strict=True):
        places = start + np.flatnonzero(block.ids[start:end] == think[0])
        first.append(int(places[-1]))
    found = np.array(first, dtype=np.int64)
    found = found[~view.wrong_vocabulary[block.row_of[found]]] if len(found) else found
    yield from block.each("TM318", found, "{n} turn{s} with reasoning that is never closed")
