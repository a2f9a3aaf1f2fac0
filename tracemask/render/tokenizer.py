"""A tokenizer as rendering needs it: ids, bytes, stops, control tokens, a fingerprint. Knows no template."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from tracemask.core.errors import RenderError, UsageError
from tracemask.render import vocabulary
from tracemask.render.backends import BACKENDS, Backend
from tracemask.render.backends.tokenizers import Tokenizers
from tracemask.render.families import family_stops

HUB = "hub:"
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One entry of added_tokens. lstrip/rstrip: it swallows white space on that side."""

    id: int
    content: str
    special: bool
    lstrip: bool = False
    rstrip: bool = False


class Tokenizer:
    """tokenizer.json with what lies beside it (tokenizer_config.json, generation_config.json, chat_template.jinja).

    No method adds a bos or any other token by itself: the template writes it, once.
    """

    def __init__(self, source: dict[str, Any], *, config: dict[str, Any], eos: Sequence[int] = (), path: str = "",
                 template: str | None = None, backend: str = "auto") -> None:  # fmt: skip
        self.json = {**source, "padding": None, "truncation": None}
        self.path = path
        self.config = config
        self.token_strings = _named_tokens(config)
        self.chat_template = template if template is not None else _template_of(config)
        self.added = {entry["id"]: _added(entry) for entry in source.get("added_tokens") or []}
        self.special_ids = frozenset(token.id for token in self.added.values() if token.special)
        self.byte_level = vocabulary.is_byte_level(source)
        self.prefix_sensitive = vocabulary.is_prefix_sensitive(source)
        self._id_of_added = {token.content: token.id for token in self.added.values()}
        self.bos_id = self._id_of_added.get(self.token_strings.get("bos_token", ""))
        named_eos = self._id_of_added.get(self.token_strings.get("eos_token", ""))
        known = [] if eos else [self._id_of_added[text] for text in family_stops(self._id_of_added)]
        self.stop_ids: frozenset[int] = frozenset([*eos, *known, *([] if named_eos is None else [named_eos])])
        self.backend = backend
        self._copies: dict[frozenset[int], Tokenizers] = {}

    @classmethod
    def load(cls, path: str | Path, *, backend: str = "auto") -> Tokenizer:
        """From a folder, a tokenizer.json, or "hub:OWNER/NAME" (the only form that uses the network).

        backend: one of BACKENDS. Raises UsageError TM901/TM902, RenderError TM923, MissingExtra.
        """
        if backend not in BACKENDS:
            BACKENDS[backend]
        file = _file_of(path)
        folder = file.parent
        beside = folder / "chat_template.jinja"
        return cls(
            _read_json(file),
            config=_read_json(folder / "tokenizer_config.json", missing={}),
            eos=_eos_list(_read_json(folder / "generation_config.json", missing={})),
            path=str(file),
            template=beside.read_text(encoding="utf-8") if beside.is_file() else None,
            backend=backend,
        )

    # ------------------------------------------------------------------ vocabulary

    @cached_property
    def id_table(self) -> list[bytes]:
        """Bytes of every id below `size`; b"" where the vocabulary has a hole."""
        table = vocabulary.bytes_by_id(self.json)
        return [table.get(index, b"") for index in range(max(table) + 1)] if table else []

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        """len(id_table[id]) for every id: int32[size]."""
        return np.fromiter((len(entry) for entry in self.id_table), np.int32, len(self.id_table))

    @cached_property
    def spaces(self) -> np.ndarray:
        """Whether an id stands for white space alone: bool[size + 1]; the last entry is for ids out of range."""
        return np.fromiter((entry.isspace() for entry in [*self.id_table, b""]), bool, self.size + 1)

    @property
    def size(self) -> int:
        """The largest id + 1: an embedding needs at least so many rows."""
        return len(self.id_table)

    @cached_property
    def vocab_size(self) -> int:
        """How many ids mean something."""
        return len(set(vocabulary.pieces(self.json)) | set(self.added))

    def id_bytes(self, token_id: int) -> bytes:
        """The bytes of one id. Raises RenderError TM201 for an id outside the vocabulary."""
        if not 0 <= token_id < len(self.id_table) or not (self.id_table[token_id] or token_id in self.added):
            raise RenderError(
                "TM201",
                where=f"id {token_id}",
                what=f"not in the vocabulary ({self.vocab_size} tokens, largest id {self.size - 1})",
                fix="load the tokenizer that the engine used",
            )
        return self.id_table[token_id]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Concatenated bytes: exact, also where they are no UTF-8. Raises RenderError TM201."""
        return b"".join([self.id_bytes(int(token_id)) for token_id in ids])

    def id_of(self, content: str) -> int | None:
        """The id of an added token by its text."""
        return self._id_of_added.get(content)

    # ------------------------------------------------------------------ encoding

    @cached_property
    def engine(self) -> Backend:
        """The backend asked for, with every added token active."""
        return BACKENDS[self.backend](self.json, self.reference)

    @cached_property
    def reference(self) -> Tokenizers:
        """The `tokenizers` package on the same file."""
        return Tokenizers(self._bytes)

    def without(self, ids: frozenset[int]) -> Tokenizers:
        """The reference with these added tokens removed: their text is ordinary text."""
        copy = self._copies.get(ids)
        if copy is None:
            copy = self._copies[ids] = Tokenizers(orjson.dumps(_stripped(self.json, ids)))
        return copy

    @cached_property
    def plain(self) -> Backend:
        """With no added token at all: the reference where it was asked for, else the automatic backend."""
        nothing = frozenset(self.added)
        name = "tokenizers" if self.backend == "tokenizers" else "auto"
        return BACKENDS[name](_stripped(self.json, nothing), self.without(nothing))

    def encode(self, text: str, *, control: str = "ids") -> list[int]:
        """Ids of `text`. control: "ids" (added tokens are recognized) or "text" (special ones are ordinary text)."""
        return self.encode_batch([text], control=control)[0]

    def encode_batch(self, texts: Sequence[str], *, control: str = "ids") -> list[list[int]]:
        """encode of each text, in one call."""
        if control == "ids":
            return self.engine.encode_batch(texts)
        if control != "text":
            raise UsageError("TM900", what=f"control {control!r}", fix='use "ids" or "text"')
        return self.without(self.special_ids).encode_batch(texts)

    def plain_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text with no added token recognized: what a canonical re-encoding compares with."""
        return self.plain.encode_batch(texts)

    def canonical(self, ids: Sequence[int]) -> list[int] | None:
        """The re-encoding of a run's bytes without added tokens; None where the bytes are no UTF-8."""
        try:
            text = self.decode_bytes(ids).decode()
        except UnicodeDecodeError:
            return None
        return self.plain_batch([text])[0]

    # ------------------------------------------------------------------ identity

    @cached_property
    def _bytes(self) -> bytes:
        return orjson.dumps(self.json)

    @cached_property
    def sha256(self) -> str:
        """sha256 (hex) of tokenizer.json with sorted keys, merges as pairs, padding and truncation left out."""
        content = {key: value for key, value in self.json.items() if key not in ("padding", "truncation")}
        merges = content["model"].get("merges")
        if merges and isinstance(merges[0], str):
            content["model"] = {**content["model"], "merges": [merge.split(" ") for merge in merges]}
        return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _file_of(path: str | Path) -> Path:
    if isinstance(path, str) and path.startswith(HUB):
        return _from_hub(path[len(HUB) :])
    place = Path(path)
    file = place / "tokenizer.json" if place.is_dir() else place
    if not file.is_file():
        raise UsageError(
            "TM901", where=str(path), what="no tokenizer.json here", fix=f"give a folder or a file, or {HUB}OWNER/NAME"
        )
    return file


def _from_hub(name: str) -> Path:
    from tracemask.core.errors import MissingExtra

    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise MissingExtra.named("huggingface_hub", "train") from None
    patterns = ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"]
    return Path(snapshot_download(name, allow_patterns=patterns)) / "tokenizer.json"


def _read_json(file: Path, *, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    if missing is not None and not file.is_file():
        return missing
    try:
        value = orjson.loads(file.read_bytes())
    except orjson.JSONDecodeError as error:
        raise RenderError("TM923", where=str(file), what=f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RenderError("TM923", where=str(file), what="not a JSON object")
    return value


def _added(entry: dict[str, Any]) -> AddedToken:
    return AddedToken(
        entry["id"],
        entry["content"],
        bool(entry.get("special")),
        bool(entry.get("lstrip")),
        bool(entry.get("rstrip")),
    )


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token, eos_token … as strings; absent and null ones are left out, as transformers passes them."""
    named: dict[str, str] = {}
    for name in _NAMED:
        value = config.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            named[name] = text
    return named


def _template_of(config: dict[str, Any]) -> str | None:
    """The chat template; of several named ones, the default."""
    value = config.get("chat_template")
    if isinstance(value, list):
        named = {entry["name"]: entry["template"] for entry in value}
        return named.get("default")
    return value


def _eos_list(config: dict[str, Any]) -> list[int]:
    value = config.get("eos_token_id")
    return [] if value is None else [value] if isinstance(value, int) else list(value)


def _stripped(source: dict[str, Any], ids: frozenset[int]) -> dict[str, Any]:
    """tokenizer.json in which the tokens `ids` cannot come out of text any more.

    They are renamed, not removed: the package numbers added tokens anew where the list has holes.
    """
    removed = {entry["content"]: _unwritable(entry["id"]) for entry in source["added_tokens"] if entry["id"] in ids}
    added = [{**entry, "content": removed.get(entry["content"], entry["content"])} for entry in source["added_tokens"]]
    if len(removed) == len(added):
        added = []
    model = dict(source["model"])
    vocab = model["vocab"]
    if not isinstance(vocab, dict):
        model["vocab"] = [[removed.get(text, text), *rest] for text, *rest in vocab]
    elif removed.keys() & vocab.keys():
        model["vocab"] = {removed.get(text, text): index for text, index in vocab.items()}
        if model.get("merges"):
            model["merges"] = [merge for merge in model["merges"] if not removed.keys() & set(_merge_texts(merge))]
    if model.get("unk_token") in removed:
        model["unk_token"] = removed[model["unk_token"]]
    return {**source, "model": model, "added_tokens": added, "post_processor": None}


def _merge_texts(merge: str | list[str]) -> tuple[str, ...]:
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right, left + right


def _unwritable(index: int) -> str:
    """A token string that no normalized text contains: 64 noncharacters around the id."""
    return "\U0010ffff" * 32 + str(index) + "\U0010fffe" * 32
