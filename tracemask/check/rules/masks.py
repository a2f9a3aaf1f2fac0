"""Rules about a row's mask as a whole: nothing trained, the wrong half, running on, padding, dead attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracemask.check.context import Run
from tracemask.check.finding import ERROR, INFO, WARNING, Finding
from tracemask.check.rule import Need, rule
from tracemask.check.view import View
from tracemask.check.whole_mask import inverted_documents
from tracemask.core.vocab import Author
from tracemask.store.foreign_names import PROMPT_IDS


@rule("TM301", "all-masked", ERROR, needs=(Need.MASK,))
def all_masked(view: View) -> Iterator[Finding]:
    """A row trains no token.

    **What it does.** Looks for rows whose mask is zero everywhere (or whose labels are all −100). Rows that say
    `trainable = false`, and later branches of a trace whose sampled tokens earlier rows own, are meant to be so.

    **Why it is bad.** The row costs compute and counts in means, and teaches nothing. When every row is like this, the
    template had no `{% generation %}` block and the library's assistant mask came back as zeros with a warning only.

    **Example.** `return_assistant_tokens_mask=True` with a template that marks nothing.

    **How to fix.** `tracemask convert` takes the mask from provenance and needs no markers; or fix the template.

    **Limits.** A rollout without any reply is masked rightly; it is reported all the same: it should not be there.
    Where some rows train, one that says `truncated = true` and trains nothing is told as information: many trainers
    mask rollouts that met the limit.
    """
    block = view.block
    assert view.mask is not None
    count = np.bincount(block.row_of[view.mask], minlength=len(block.rows))
    empty = (count == 0) & (block.sizes > 0)
    trainable, forks, cut = block.scalar("trainable"), block.scalar("fork_row"), block.scalar("truncated")
    if view.author is not None and empty.any():
        replies = np.bincount(block.row_of[view.policy], minlength=len(block.rows))
    else:
        replies = np.zeros(len(block.rows), dtype=np.int64)
    for row in np.flatnonzero(empty).tolist():
        if trainable[row] is False or forks[row] is not None:
            continue
        has = f", though {int(replies[row])} tokens are the policy's" if replies[row] else ""
        severity = INFO if cut[row] and count.any() else None
        text = f"no token of {int(block.sizes[row])} is in the loss{has}"
        yield block.finding("TM301", row, text, token=0, severity=severity, cause="truncated" if severity else None)


@rule("TM308", "mask-inverted", ERROR, needs=(Need.MASK, Need.SPANS))
def mask_inverted(view: View) -> Iterator[Finding]:
    """The mask trains everybody but the policy.

    **What it does.** Reports rows, or documents packed in a row, where at least nine tenths of the other authors'
    tokens are trained and at most a tenth of the policy's.

    **Why it is bad.** The model learns to write tool outputs and prompts, and the loss curve looks healthy.

    **Example.** A mask that means "ignore" read as one that means "train".

    **How to fix.** Invert the column, or name it rightly: `--columns mask=…` expects 1 = in the loss.

    **Limits.** Fewer than four tokens on either side are not judged. Where nothing says where packed documents begin,
    the row is judged as a whole.
    """
    edges, wrong = view.edges, inverted_documents(view)
    for row in np.flatnonzero(view.inverted & ~view.wrong_vocabulary).tolist():
        begin, end = int(view.block.offsets[row]), int(view.block.offsets[row + 1])
        first, stop = np.searchsorted(edges, (begin, end)).tolist()
        found = first + np.flatnonzero(wrong[first:stop])
        start = int(edges[found[0]]) if len(found) else begin
        token = start - begin + int(np.argmax(view.trained[start:end]))
        where = f", in {len(found)} of {stop - first} documents" if 0 < len(found) < stop - first else ""
        text = f"the others' tokens are trained and the policy's are not{where}"
        yield view.block.finding("TM308", row, text, token=token)


@rule("TM313", "mask-runs-to-end", ERROR, needs=(Need.MASK, Need.SPANS))
def mask_runs_to_end(view: View) -> Iterator[Finding]:
    """The last trained span begins in a reply and runs over later turns to the row's end.

    **What it does.** Looks for a trained span that starts in policy text, reaches the end of the row, and covers words
    of another author on its way.

    **Why it is bad.** Tool outputs and user turns after the first reply are trained. Typical of code that looks for
    the end of a reply, does not find it, and takes the length instead.

    **Example.** `end = ids.index(eos, start) or len(ids)` with an eos that the template does not use.

    **How to fix.** End the mask at the turn's own stop token.

    **Limits.** A mask that skips one of the later turns is reported by TM306 and TM307 instead.
    """
    block = view.block
    assert view.mask is not None
    starts, ends = block.spans(view.mask)
    for row in np.flatnonzero(view.runs_on & (view.shift == 0) & ~view.wrong_vocabulary).tolist():
        begin, end = int(block.offsets[row]), int(block.offsets[row + 1])
        last = int(np.searchsorted(starts, end)) - 1
        start = int(starts[last])
        other = np.flatnonzero(~view.policy[start : int(ends[last])] & ~view.leading[start : int(ends[last])])
        yield block.finding(
            "TM313", row, f"trained from token {start - begin} to the end, over other turns",
            token=start - begin + int(other[0]), end=int(ends[last]) - begin,
        )  # fmt: skip


@rule("TM312", "padding-trained", ERROR, needs=(Need.IDS, Need.MASK, Need.TOKENIZER))
def padding_trained(view: View) -> Iterator[Finding]:
    """Padding at a row's end is in the loss.

    **What it does.** Finds the trailing run of the pad id. Where the pad id also ends turns (DeepSeek: both are id 1),
    the first of the run is the real stop and the rest is padding.

    **Why it is bad.** The model learns to emit pads, and every mean over tokens depends on how rows were padded.

    **Example.** Labels copied from padded `input_ids` without setting the pad positions to −100.

    **How to fix.** Mask by position (the attention mask), never by `id == pad`: that also drops real stops.

    **Limits.** Needs the tokenizer's pad token, or an added token that calls itself pad.
    """
    assert view.mask is not None
    places = np.flatnonzero(view.mask & view.padding)
    yield from view.block.each("TM312", places, "{n} padding token{s} in the loss")


@rule("TM314", "trained-under-zero-attention", ERROR, needs=(Need.MASK, Need.ATTENTION))
def trained_without_attention(view: View) -> Iterator[Finding]:
    """A token is in the loss though the attention mask hides it.

    **What it does.** Looks for trained tokens whose `attention_mask` is 0.

    **Why it is bad.** The token is predicted from a context that the model cannot see; usually padding or a row that
    was cut in one column only.

    **Example.** A left-padded batch whose labels were padded on the right.

    **How to fix.** Pad all columns on one side, with −100 or 0 for the mask.

    **Limits.** Needs an `attention_mask` column of zeros and ones; packed masks with document numbers count as ones.
    """
    attention = view.block.column("attention_mask", neutral=1)
    assert attention is not None and view.mask is not None
    dark = view.mask & (attention == 0)
    places = np.flatnonzero(dark & ~view.padding)  # padding is TM312, which needs a tokenizer to know it
    yield from view.block.each("TM314", places, "{n} token{s} in the loss that the attention mask hides")


def _owners_finish(run: Run) -> Iterator[Finding]:
    yield from run.state("TM311", Owners).close()


@rule("TM311", "some-turns-untrained", WARNING, needs=(Need.MASK, Need.SPANS), finish=_owners_finish)
def some_turns_untrained(view: View) -> Iterator[Finding]:
    """Some of the policy's turns in a row are trained and others are not.

    **What it does.** Looks for policy turns without a single trained token in rows where another turn has some.

    **Why it is bad.** Most often the mask follows only the last reply, or a regular expression that misses tool
    calls: the policy then never learns the turns that led to the reward.

    **Example.** Two turns call a tool and are masked out, the final answer is trained.

    **How to fix.** Train every sampled turn, or say so on purpose and ignore the rule with that reason.

    **Limits.** In our shards, a turn that another row of its trace trains is rightly untrained in this one. In data
    with a column of prompts, turns in the prompt are context: told as information.
    """
    block = view.block
    if not view.stored_authors:
        places = _missed(view)[0]
        before = places < prompt_ends(view)[block.row_of[places]]
        for finding in block.each("TM311", places[before], _CONTEXT, cause="in the prompt column"):
            yield replace(finding, severity=INFO)
        yield from block.each("TM311", places[~before], _TURNS)
        return
    held = view.run.state("TM311", Owners)
    start, end = block.spans(view.trained)
    message = block.column("message", neutral=-1)
    owned: dict[int, set[int]] = {}
    for row, turn in zip(
        block.row_of[start].tolist(), message[start].tolist() if message is not None else (), strict=False
    ):
        owned.setdefault(row, set()).add(turn)
    places, turns = _missed(view)
    waiting: dict[int, list[tuple[int, int]]] = {}
    for at, turn in zip(places.tolist(), turns.tolist(), strict=True):
        row = int(block.row_of[at])
        waiting.setdefault(row, []).append((turn, at - int(block.offsets[row])))
    for i, trace in enumerate(block.scalar("trace_id")):
        yield from held.move(trace)
        held.owned |= owned.get(i, set())
        held.waiting += [(turn, block.finding("TM311", i, _ONE, token=token)) for turn, token in waiting.get(i, ())]


def prompt_ends(view: View) -> np.ndarray:
    """end[R], flat: where the prompt ends in data that keep prompt and completion apart; elsewhere the row's start."""
    block = view.block
    out = block.offsets[:-1].copy()
    sources = getattr(view.run.dataset, "sources", ())
    apart = any(getattr(source, "names", None) is not None and source.names.ids is None for source in sources)
    for i, row in enumerate(block.rows):
        beside = next((row.columns[name] for name in PROMPT_IDS if name in row.columns), None)
        if beside is not None:
            out[i] += min(len(beside), int(block.sizes[i]))
        elif apart:
            trained = np.flatnonzero(view.trained[block.offsets[i] : block.offsets[i + 1]])
            out[i] += int(trained[0]) if len(trained) else 0
    return out


_CONTEXT = "{n} turn{s} of the policy in the prompt, without a trained token"
_TURNS = "{n} turn{s} of the policy without a trained token, others have some"
_ONE = "a turn of the policy without a trained token, in no row of its trace"


class Owners:
    """The turns that some row of the current trace trains, and the turns that still wait for such a row."""

    def __init__(self) -> None:
        self.trace: object = None
        self.owned: set[int] = set()
        self.waiting: list[tuple[int, Finding]] = []

    def move(self, trace: object) -> Iterator[Finding]:
        """To the rows of `trace`; the untrained turns of the one before are told when it changes."""
        if trace is None or trace != self.trace:
            yield from self.close()
            self.trace = trace

    def close(self) -> Iterator[Finding]:
        """What waited in vain."""
        told = set()
        for turn, finding in self.waiting:
            if turn not in self.owned and turn not in told:
                told.add(turn)
                yield finding
        self.owned, self.waiting = set(), []


def _missed(view: View) -> tuple[np.ndarray, np.ndarray]:
    """First tokens (flat) of policy turns without a trained token in rows that have others, and their messages."""
    block = view.block
    message = block.column("message", neutral=-1)
    start, end = block.spans(view.policy)
    trained = np.concatenate([[0], np.cumsum(view.trained)])
    has = trained[end] > trained[start]
    row = block.row_of[start] if len(start) else start
    any_trained = np.bincount(row[has], minlength=len(block.rows)) > 0
    missed = ~has & any_trained[row] & (end - start >= 2) & ~view.upset[row]
    turns = message[start] if message is not None else np.full(len(start), -1)
    return start[missed], turns[missed]


def environment_like(author: np.ndarray) -> np.ndarray:
    """Tokens that came from the world: tool output and verdicts."""
    return (author == Author.ENVIRONMENT) | (author == Author.VERIFIER)
