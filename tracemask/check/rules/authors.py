"""Rules that hold the mask against who wrote each token."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tracemask.check.finding import ERROR, Finding
from tracemask.check.rule import Need, rule
from tracemask.check.rules.masks import environment_like
from tracemask.check.rules.openers import prefilled
from tracemask.check.rules.shift import after_stop
from tracemask.check.view import View
from tracemask.core.vocab import Author


def gradient_mask(view: View) -> np.ndarray:
    """Tokens that imitate or reinforce the policy: the mask; in materialised shards also policy-gradient weights."""
    mask = view.trained
    terms = gradient_components(view)
    for component in terms:
        mask = mask | (np.nan_to_num(view.block.weights[component]) != 0)
    return mask


def gradient_components(view: View, *, logprobs: bool = False) -> list[str]:
    """Weight streams of terms that use advantages: by the recipe in the metadata, else by their usual names.

    logprobs: only those that also read the sampler's log-probs.
    """
    from tracemask.recipe.terms import TERMS

    components = (view.run.metadata.get("recipe") or {}).get("components") or {}
    found = []
    for name in view.block.weights:
        term = str((components.get(name) or {}).get("term", ""))
        if term in TERMS:
            spec = TERMS[term]
            wanted = spec.uses_advantage and (not logprobs or bool({"old", "sampler"} & spec.needs))
        else:
            wanted = name in ("rl", "pg", "policy")
        if wanted:
            found.append(name)
    return found


@rule("TM306", "environment-trained", ERROR, needs=(Need.MASK, Need.SPANS))
def environment_trained(view: View) -> Iterator[Finding]:
    """Tool output or a verifier's message is in the policy's loss.

    **What it does.** Looks for trained tokens whose author is the environment or a verifier. Other data than ours has
    no author column: there, turns are read off the ids by the template's openers.

    **Why it is bad.** The policy is reinforced for text that it never chose; it learns to invent tool outputs, and
    importance ratios on such tokens are meaningless.

    **Example.** A mask that is 1 from the first reply on, tool outputs included.

    **How to fix.** Mask by author. For training on environment text on purpose (ECHO), give it a component of its own.

    **Limits.** Weight streams of components that are no policy gradient may select any author and are not judged.
    """
    author = view.author
    assert author is not None
    wrong = gradient_mask(view) & environment_like(author) & view.known & ~view.upset[view.block.row_of]
    yield from view.block.each("TM306", np.flatnonzero(wrong), "{n} token{s} of the environment in the loss")


@rule("TM307", "prompt-or-header-trained", ERROR, needs=(Need.MASK, Need.SPANS))
def prompt_trained(view: View) -> Iterator[Finding]:
    """The prompt, a template's header or another model's text is in the policy's loss.

    **What it does.** Looks for trained tokens written by the template, the harness, the task, a user or another model.

    **Why it is bad.** None of it was sampled. A header in the loss also takes the place of the first real token when
    the prompt was measured without the generation prompt.

    **Example.** The completion starts at `<|im_start|>assistant\\n`: three header tokens and an empty think block.

    **How to fix.** Measure the prompt with `add_generation_prompt=True`, or mask by author.

    **Limits.** White space behind a stop is TM310, padding TM312, a mask that is moved as a whole TM302.
    """
    block, author = view.block, view.author
    assert author is not None
    wrong = gradient_mask(view) & (author != Author.POLICY) & ~environment_like(author)
    wrong &= view.known & ~view.upset[block.row_of]
    if view.run.grammar is not None:
        wrong &= ~after_stop(view) & ~prefilled(view)
    for row, token, count in block.first_per_row(np.flatnonzero(wrong)):
        code = int(author[block.offsets[row] + token])
        who = Author(code).label if code < len(Author) else f"author code {code}"
        text = f"{count} token{'s' if count > 1 else ''} in the loss that the policy did not write (first: {who})"
        yield block.finding("TM307", row, text, token=token, cause=who, tokens=count)
