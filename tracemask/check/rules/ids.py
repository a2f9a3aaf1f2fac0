"""Rules about single ids: outside the vocabulary, doubled beginnings."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracemask.check.finding import ERROR, Finding
from tracemask.check.rule import Need, rule
from tracemask.check.view import View


@rule("TM201", "id-out-of-range", ERROR, needs=(Need.IDS, Need.TOKENIZER))
def id_out_of_range(view: View) -> Iterator[Finding]:
    """An id is not in the tokenizer's vocabulary.

    **What it does.** Checks every id against the tokenizer's ids, added tokens included. The vocabulary size that
    configuration files state is the wrong bound on both sides: added tokens lie above it, and the model's output layer
    is often padded beyond the last token.

    **Why it is bad.** Negative ids crash or index from the end; ids in the padded part of the output layer decode to
    nothing, so that text tools never show them, while the loss trains them.

    **Example.** Qwen3 ends at id 151668, its output layer has 151936 rows: id 151700 is in the data.

    **How to fix.** Drop the rollout, and mask the padded ids in the sampler (`bad_words` or a logit bias).

    **Limits.** Says nothing about ids that exist but come from another tokenizer; see TM205.
    """
    block, lens = view.block, view.lens
    wrong = (block.ids < 0) | (block.ids >= lens.size) | ~lens.known[view.safe]
    if not wrong.any():
        return
    for row, token, count in block.first_per_row(np.flatnonzero(wrong)):
        value = int(block.ids[block.offsets[row] + token])
        text = f"id {value} is not in the vocabulary (largest {lens.size - 1})" + (
            f", {count} such" if count > 1 else ""
        )
        yield block.finding("TM201", row, text, token=token, id=value, tokens=count)


@rule("TM206", "double-bos", ERROR, needs=(Need.IDS, Need.TOKENIZER))
def double_bos(view: View) -> Iterator[Finding]:
    """The beginning-of-sequence token stands twice in a row.

    **What it does.** Looks for two adjacent bos ids.

    **Why it is bad.** The template writes bos and the tokenizer adds another one: no model was trained on that, and
    log-probs of the whole sequence shift. Gemma in particular degrades badly.

    **Example.** `<|begin_of_text|><|begin_of_text|><|start_header_id|>user…` after
    `tokenizer(apply_chat_template(…, tokenize=False))`.

    **How to fix.** Encode rendered text with `add_special_tokens=False`.

    **Limits.** Tokenizers without a bos token are not checked.
    """
    bos, block = view.lens.bos, view.block
    if bos is None or len(block) < 2:
        return
    is_bos = block.ids == bos
    twice = np.flatnonzero(is_bos[1:] & is_bos[:-1] & (block.row_of[1:] == block.row_of[:-1])) + 1
    twice = twice[~view.padding[twice]]
    yield from block.each("TM206", twice, "the beginning-of-sequence token stands twice")
