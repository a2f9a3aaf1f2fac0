"""Rules about rows that stand twice: inside a dataset, and in training and evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tracemask.check.block import blocks, named
from tracemask.check.context import Run
from tracemask.check.finding import WARNING, Finding
from tracemask.check.rollouts import hash_of
from tracemask.check.rule import Need, rule
from tracemask.check.view import View


@dataclass
class Seen:
    """Hash of a row's ids → (row, group, line of its log, its own name); name → (row, line)."""

    rows: dict[int, tuple[int, str | None, int | None, object]] = field(default_factory=dict)
    names: dict[str, tuple[int, int | None]] = field(default_factory=dict)


@rule("TM502", "duplicate-rows", WARNING, needs=(Need.IDS,))
def duplicate_rows(view: View) -> Iterator[Finding]:
    """Two rows have exactly the same ids, or one name.

    **What it does.** Hashes each row's ids. Equal rows of one group are TM409 (or legitimate: short greedy answers),
    unless they bear one name in our shards: then one rollout was written twice. Other ids under one name are found too.

    **Why it is bad.** The row counts twice in every mean; and what was appended twice once is often appended twice
    altogether. Rollouts of one name are taken for branches of one: they share a reward and count once.

    **Example.** A log that was resumed and written again from the start; attempts that bear the id of their task.

    **How to fix.** Drop the copies; converting with receipts never writes a row twice. Give each rollout its own `id`;
    its task belongs in `task_id`.

    **Limits.** Rows that differ in one token are different. Memory grows by some bytes per row.
    """
    seen, block, ours = view.run.state("TM502", Seen), view.block, view.run.kind == "tracemask"
    for i, (group, identity) in enumerate(zip(block.scalar("group_id"), block.scalar("id"), strict=True)):
        ids = block.ids[block.offsets[i] : block.offsets[i + 1]]
        if not len(ids):
            continue
        row, line = block.rows[i].index, block.lines[i]
        name = None if group is None else str(group)
        first, where, said, known = seen.rows.setdefault(hash_of(ids), (row, name, line, identity))
        bearer = seen.names.setdefault(identity, (row, line)) if ours and isinstance(identity, str) else (row, line)
        text = f"the same {len(ids)} ids as {named(first, said)}"
        if first != row and bearer[0] != row and identity == known:
            yield block.finding("TM502", i, f"{text}, and its name", token=0, cause="written twice", twin=first)
        elif bearer[0] != row:
            text = f"the name of {named(*bearer)}, and other ids: both count as one rollout"
            yield block.finding("TM502", i, text, token=0, cause="one name", twin=bearer[0])
        elif first != row and (name is None or name != where):
            yield block.finding("TM502", i, text, token=0, twin=first)


@dataclass
class Held:
    """Hashes of the evaluation set: whole rows and prompts."""

    rows: set[int] | None = None
    prompts: set[int] = field(default_factory=set)


@rule("TM503", "train-eval-overlap", WARNING, needs=(Need.IDS, Need.EVAL))
def train_eval_overlap(view: View) -> Iterator[Finding]:
    """A training row, or its prompt, is also in the evaluation set.

    **What it does.** Hashes whole rows, and the ids before the first trained token, of the dataset given by `--eval`.

    **Why it is bad.** Evaluation then measures memory.

    **Example.** Tasks were split after rollouts had been sampled from all of them.

    **How to fix.** Split by task before sampling.

    **Limits.** Exact ids only; a rephrased task is not found. Prompts shorter than eight tokens are not compared.
    """
    held = view.run.state("TM503", Held)
    if held.rows is None:
        held.rows, held.prompts = _evaluation(view.run)
    for i, (row, prompt) in enumerate(_hashes(view)):
        if row in held.rows:
            yield view.block.finding("TM503", i, "this row is in the evaluation set", token=0, cause="row")
        elif prompt is not None and prompt in held.prompts:
            yield view.block.finding("TM503", i, "this prompt is in the evaluation set", token=0, cause="prompt")


def _hashes(view: View) -> Iterator[tuple[int, int | None]]:
    block = view.block
    for i in range(len(block.rows)):
        begin, end = int(block.offsets[i]), int(block.offsets[i + 1])
        ids = block.ids[begin:end]
        prompt = None
        if view.mask is not None and view.mask[begin:end].any():
            first = int(np.argmax(view.mask[begin:end]))
            prompt = hash_of(ids[:first]) if first >= 8 else None
        yield hash_of(ids), prompt


def _evaluation(run: Run) -> tuple[set[int], set[int]]:
    from tracemask.store.reader import open_dataset

    assert run.options.eval_path is not None
    dataset = open_dataset(run.options.eval_path)
    other = Run(kind=dataset.kind, tokenizer=run.tokenizer, template=run.template)
    rows: set[int] = set()
    prompts: set[int] = set()
    for block in blocks(((row, "") for row in dataset), tokens=1 << 19):
        for row, prompt in _hashes(View(block, other)):
            rows.add(row)
            if prompt is not None:
                prompts.add(prompt)
    return rows, prompts
