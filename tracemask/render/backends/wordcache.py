"""The default backend where a tokenizer allows it: each word is encoded by `tokenizers` once, then remembered."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from tracemask.core.errors import RenderError
from tracemask.render.backends.boundaries import Boundaries
from tracemask.render.backends.patterns import Unsupported
from tracemask.render.backends.probes import PROBES, Comparison
from tracemask.render.backends.tokenizers import Tokenizers
from tracemask.render.vocabulary import byte_alphabet, parts_of

WORDS = 200_000
"""Words remembered; then all are forgotten. About 150 bytes each."""

LONGEST = 64
"""Characters of a word that is remembered: longer ones hardly come again."""


class WordCache:
    """Same ids as `tokenizers`: texts whose boundaries are not certain here go to it whole.

    source: tokenizer.json. Raises Unsupported where it is not certain that the boundaries are read alike.
    """

    name = "wordcache"

    def __init__(self, source: dict[str, Any], reference: Tokenizers) -> None:
        self._boundaries = Boundaries(source)
        _encodes_words_alone(source)
        self._words = _Words(reference)
        self._reference = reference
        self._comparison = Comparison(self.name, reference)
        self._comparison.all(PROBES, self.encode_batch(PROBES))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text."""
        flat, counts = self.encode_flat(texts)
        return [ids.tolist() for ids in np.split(flat, np.cumsum(counts)[:-1])] if len(texts) else []

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """All ids in one array, and how many each text has; some are compared with the reference."""
        covers, words, ids_of = self._boundaries.covers, self._boundaries.words, self._words.__getitem__
        found = [b"".join(map(ids_of, words(text))) if covers(text) else None for text in texts]
        left = [at for at, ids in enumerate(found) if ids is None]
        for at, ids in zip(left, self._reference.encode_batch([texts[at] for at in left]), strict=True):
            found[at] = array("i", ids).tobytes()
        known = [ids for ids in found if ids is not None]
        counts = np.fromiter(map(len, known), np.int64, len(known)) // 4
        flat = np.frombuffer(bytearray().join(known), np.int32)
        self._comparison.spot(texts, flat, counts)
        return flat, counts


def asked(source: dict[str, Any], reference: Tokenizers) -> WordCache:
    """The backend for someone who named it. Raises RenderError TM923 for a tokenizer that it does not know."""
    try:
        return WordCache(source, reference)
    except Unsupported as reason:
        raise RenderError(
            "TM923", what=f"wordcache does not know this tokenizer: {reason}", fix="use backend='tokenizers'"
        ) from None


def automatic(source: dict[str, Any], reference: Tokenizers) -> WordCache | Tokenizers:
    """The word cache where it knows the tokenizer, else the reference; the ids are the same."""
    try:
        return WordCache(source, reference)
    except Unsupported:
        return reference


def _encodes_words_alone(source: dict[str, Any]) -> None:
    """Raises Unsupported unless a text's ids are those of its words, one after the other, and every word has some."""
    model = source["model"]
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise Unsupported(f"the model {model.get('type')}")
    if model.get("dropout"):
        raise Unsupported("a model with dropout")
    if model.get("unk_token") is not None and model["unk_token"] not in model["vocab"]:
        raise Unsupported("an unk_token without an id")
    for part in parts_of(source.get("post_processor")):
        if part.get("type") == "TemplateProcessing" and sum("Sequence" in piece for piece in part["single"]) != 1:
            raise Unsupported("a template that does not write the text once")


class _Words(dict[str, bytes]):
    """A word -> its ids as bytes of int32, asked of the package's model on first sight."""

    def __init__(self, reference: Tokenizers) -> None:
        super().__init__()
        self._model = reference.model
        self._alphabet = {byte: character for character, byte in byte_alphabet().items()}

    def __missing__(self, word: str) -> bytes:
        spelled = word.encode().decode("latin-1").translate(self._alphabet)
        ids = array("i", [token.id for token in self._model.tokenize(spelled)]).tobytes()
        if len(word) <= LONGEST:
            if len(self) >= WORDS:
                self.clear()
            self[word] = ids
        return ids
