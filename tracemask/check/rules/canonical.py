"""Rules that re-encode: what the tokenizer would make of the same bytes, and what follows from the difference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracemask.check.block import common_prefix
from tracemask.check.context import Run
from tracemask.check.finding import ERROR, INFO, WARNING, Finding
from tracemask.check.lens import Runs
from tracemask.check.rule import Need, rule
from tracemask.check.view import View
from tracemask.check.windows import mismatched
from tracemask.store.row import Row

TAIL = 3  # tokens at an unstopped end, where a cut character or merge is nobody's fault
ENOUGH = 5_000  # sampled tokens before "not one odd split" means something


def first_difference(view: View, run: Runs) -> int:
    """The first token (flat) whose id the re-encoding changes."""
    start, end = run.trimmed
    if run.canonical is None:
        return run.start + int(np.argmax(mismatched(view, run)))
    same = common_prefix(view.safe[start:end], run.canonical)
    return min(start + same, run.end - 1)


def first_invalid(view: View, run: Runs) -> int:
    """The token (flat) that holds the first byte which is not UTF-8."""
    raw, offsets = view.raw
    begin, end = int(offsets[run.start]), int(offsets[run.end])
    try:
        raw[begin:end].decode()
    except UnicodeDecodeError as error:
        return int(np.searchsorted(offsets, begin + error.start, side="right")) - 1
    return run.start


def cause_of(view: View, run: Runs) -> str:
    """The cause in the shared taxonomy: invalid_utf8, boundary_merge, bpe_split or nfc."""
    if run.canonical is None:
        return "invalid_utf8"
    start, end = run.trimmed
    raw, offsets = view.raw
    size = int(offsets[end] - offsets[start])
    theirs = sum(int(view.lens.byte_length[token]) for token in run.canonical)
    ids = view.safe[start:end]
    canonical = b"".join(view.lens.tokenizer.id_bytes(token) for token in run.canonical)
    if theirs != size or canonical != raw[int(offsets[start]) : int(offsets[end])]:
        return "nfc"
    same = common_prefix(ids, run.canonical)
    back = common_prefix(ids[::-1], run.canonical[::-1])
    at_edge = (same == 0 or (same + back >= len(ids) - 1 and back == 0)) and len(ids) - same - back <= 2
    return "boundary_merge" if at_edge and len(ids) > 2 else "bpe_split"


def differing(view: View) -> list[Runs]:
    """Noncanonical runs that are not explained by half characters at an edge alone."""
    out = []
    for run in view.drift:
        start, end = run.trimmed
        if run.canonical is not None and run.canonical == view.safe[start:end].tolist():
            continue
        out.append(run)
    return out


@rule("TM202", "sampled-differs-from-trained", ERROR, needs=(Need.IDS, Need.TOKENIZER))
def sampled_differs(view: View) -> Iterator[Finding]:
    """The ids that are trained are not the ids that the policy sampled.

    **What it does.** Where a row also holds the engine's own ids (`completion_ids`, `response_ids`, `sampled_ids`),
    compares them with the trained ids: a difference is an error. Where the row holds sampled ids only, tells (as
    information) which of them any decode-and-encode downstream would change, with the cause and the first index; the
    same for what the renderer recorded as drift when it kept the sampled ids.

    **Why it is bad.** Text does not determine ids. A policy that sampled `H` + `AVING` is then trained on `HAV` +
    `ING`, tokens it never chose, with log-probs that belong to others; equal lengths hide it.

    **Example.** `turn 3: trained ids differ from the sampled ones from token 14 on (bpe_split)`.

    **How to fix.** Keep `token_ids` of the engine beside each reply; `tracemask convert` then takes them verbatim.

    **Limits.** Needs the sampled ids from somewhere; with trained ids alone nothing can be proved, see TM204.
    """
    yield from _against_engine(view)
    yield from _recorded(view, "sampled", "TM202")
    if view.author is None:
        return
    noted = np.array([drifts is not None for drifts in view.block.scalar("drifts")], dtype=bool)
    for run in differing(view):
        row = view.block.row_of[run.start]
        if not view.policy[run.start] or view.wrong_vocabulary[row] or noted[row]:
            continue
        cause = cause_of(view, run)
        at = first_invalid(view, run) if cause == "invalid_utf8" else first_difference(view, run)
        row = int(view.block.row_of[at])
        token = at - int(view.block.offsets[row])
        yield view.block.finding(
            "TM202", row, f"sampled ids that re-encoding would change ({cause}); kept as sampled", token=token,
            severity=INFO, cause=f"{cause}, sampled ids kept", tokens=int(mismatched(view, run).sum()),
        )  # fmt: skip


SHOWN = 16  # ids kept on each side of a difference, for the views that lay them side by side
ENGINE_IDS = ("sampled_ids", "completion_ids", "response_ids", "completion_token_ids")


def engine_ids(row: Row) -> np.ndarray | None:
    """The engine's own ids of a row, where a second column holds them."""
    for name in ENGINE_IDS:
        given = row.columns.get(name, row.scalars.get(name))
        if given is not None:
            return np.asarray(given)
    return None


def _against_engine(view: View) -> Iterator[Finding]:
    if view.mask is None:
        return
    block = view.block
    for i, row in enumerate(block.rows):
        given = engine_ids(row)
        if given is None or i in block.ragged:
            continue
        begin, end = int(block.offsets[i]), int(block.offsets[i + 1])
        places = np.flatnonzero(view.trained[begin:end])
        trained = block.ids[begin:end][places]
        engine = given
        if len(engine) == len(trained) and (engine == trained).all():
            continue
        if len(engine) > len(trained) and len(places):  # the whole completion, unsampled parts included
            whole = block.ids[begin + int(places[0]) : end][: len(engine)]
            if len(whole) == len(engine) and (whole == engine).all():
                continue
        same = common_prefix(trained, engine.tolist())
        token = int(places[min(same, len(places) - 1)]) if len(places) else 0
        text = f"{len(trained)} trained ids differ from the {len(engine)} sampled ones, first at trained token {same}"
        both = {
            "trained_ids": trained[same : same + SHOWN].tolist(),
            "expected_ids": engine[same : same + SHOWN].tolist(),
        }
        yield block.finding("TM202", i, text, token=token, cause="re-tokenized", **both)


def _recorded(view: View, where: str, code: str) -> Iterator[Finding]:
    """Drift that the renderer noted when it kept the engine's ids."""
    for i, row in enumerate(view.block.rows):
        for drift in row.scalars.get("drifts") or ():
            if drift.get("where", "sampled") == where and drift["changed"]:
                cause = drift["cause"]
                text = f"re-rendering would change {drift['changed']} {where} ids ({cause}); the engine's are kept"
                token = min(int(drift["token"]), max(len(row) - 1, 0))
                yield view.block.finding(code, i, text, token=token, severity=INFO, cause=f"{cause}, {where} ids kept")


@rule("TM203", "noncanonical-context", WARNING, needs=(Need.IDS, Need.TOKENIZER, Need.SPANS))
def noncanonical_context(view: View) -> Iterator[Finding]:
    """Text that the policy did not write is split as its tokenizer would not split it.

    **What it does.** Splits each row at added tokens, joins the token *bytes* (decoding to text and back raises false
    alarms at half characters), encodes them again and compares. Only tokens of other authors are judged here.

    **Why it is bad.** A sampler reads a prompt as its tokenizer writes it. Context that was encoded in pieces (per
    message, per line) or by another version gives the policy a prompt that it never sees when sampling.

    **Example.** A tool's output encoded apart from the template's newline: `\\n` + `\\n` instead of `\\n\\n`.

    **How to fix.** Render the whole context and encode it at once between replies, or keep the engine's `prompt_ids`.

    **Limits.** Runs with bytes that are no UTF-8 are left to TM213. The last three tokens of a row that ends without a
    stop are told as information.
    """
    yield from _recorded(view, "context", "TM203")
    block = view.block
    for run in differing(view):
        row = int(block.row_of[run.start])
        if view.policy[run.start] or view.wrong_vocabulary[row]:
            continue
        cause = cause_of(view, run)
        if cause == "invalid_utf8" or (view.mask is not None and view.trained[run.start : run.end].any()):
            continue
        at = first_difference(view, run)
        late = run.end == block.offsets[row + 1] and run.end - at <= TAIL
        yield block.finding(
            "TM203", row, f"context ids are not the tokenizer's own split ({cause})",
            token=at - int(block.offsets[row]),
            severity=INFO if late else None, cause=cause, tokens=int(mismatched(view, run).sum()),
        )  # fmt: skip


@dataclass
class Seen:
    """Sampled ordinary tokens, and noncanonical runs among them."""

    tokens: int = 0
    odd: int = 0


def _canonical_finish(run: Run) -> Iterator[Finding]:
    seen = run.state("TM204", Seen)
    if seen.tokens >= ENOUGH and not seen.odd:
        yield Finding(
            "TM204", f"not one of {seen.tokens:,} sampled tokens is split oddly: probably re-encoded from text"
        )


@rule("TM204", "suspiciously-canonical", INFO, needs=(Need.IDS, Need.TOKENIZER, Need.SPANS), finish=_canonical_finish)
def suspiciously_canonical(view: View) -> Iterator[Finding]:
    """Sampled text holds no noncanonical token at all.

    **What it does.** Counts sampled tokens that differ from the tokenizer's own split of their bytes. Policies sample
    such tokens now and then (often once in some thousand); in 5,000 tokens or more without one, the ids were
    probably made from text.

    **Why it is bad.** Ids made from text are not what was sampled; their log-probs and ratios belong to other tokens.

    **Example.** `not one of 48,211 sampled tokens is split oddly`.

    **How to fix.** Log the engine's ids and give them to convert.

    **Limits.** A hint, not a proof: low temperature and short replies give canonical ids too. Rows that say themselves
    that they were rendered from text (fidelity `messages`) are not counted.
    """
    counted = np.array([fidelity != "messages" for fidelity in view.block.scalar("fidelity")], dtype=bool)
    seen = view.run.state("TM204", Seen)
    mine = view.policy & view.ordinary & counted[view.block.row_of] if len(view.block) else np.zeros(0, dtype=bool)
    seen.tokens += int(mine.sum())
    seen.odd += sum(1 for run in differing(view) if mine[run.start])
    return iter(())


@rule("TM205", "wrong-tokenizer", ERROR, needs=(Need.IDS, Need.TOKENIZER))
def wrong_tokenizer(view: View) -> Iterator[Finding]:
    """The ids were made by another tokenizer than the one given.

    **What it does.** Cuts each row into windows of 32 tokens and counts those that hold ids which do not re-encode to
    themselves or do not exist. Half of at least three windows decide, if a quarter have such ids elsewhere than where
    text meets a tag: text and tags that were encoded apart are TM203. Other findings of such rows are left out.

    **Why it is bad.** Every other finding, every decoded text and every training step on these ids is meaningless.

    **Example.** Shards made with DeepSeek V3 ids, checked or trained as Qwen3: all ids are in range, the text is noise.

    **How to fix.** Give the tokenizer that made the ids (`metadata.tokenizer_sha256` names it in our shards).

    **Limits.** Rows shorter than 65 tokens are not judged. Two tokenizers that share most merges look alike.
    """
    for row in np.flatnonzero(view.wrong_vocabulary).tolist():
        yield view.block.finding(
            "TM205", row, "the ids do not re-encode to themselves: another tokenizer made them", token=0
        )
