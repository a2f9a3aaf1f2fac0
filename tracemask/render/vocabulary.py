"""The bytes of each token, read from a tokenizer.json's own tables. Knows no text and encodes nothing."""

from __future__ import annotations

import re
from typing import Any

_MEMBERS = ("normalizers", "pretokenizers", "decoders", "processors")
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")


def byte_alphabet() -> dict[str, int]:
    """The printable character that byte-level BPE writes for each byte -> that byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    table.update({chr(256 + index): byte for index, byte in enumerate(hidden)})
    return table


def parts_of(node: Any) -> list[dict[str, Any]]:
    """A normalizer, pre-tokenizer, decoder or post-processor as the flat list of its members (Sequences opened)."""
    if not isinstance(node, dict):
        return []
    if node.get("type") == "Sequence":
        inner = next((node[name] for name in _MEMBERS if name in node), None)
        return [part for item in inner or [] for part in parts_of(item)]
    return [node]


def is_byte_level(source: dict[str, Any]) -> bool:
    """True for byte-level BPE, whose token strings are bytes in the printable alphabet."""
    nodes = (*parts_of(source.get("pre_tokenizer")), *parts_of(source.get("decoder")))
    return any(part.get("type") == "ByteLevel" for part in nodes)


def is_prefix_sensitive(source: dict[str, Any]) -> bool:
    """True where a text's first characters encode differently at a start than after another text.

    A prepended space or ▁ makes encoding in runs inexact; such tokenizers encode behind an anchor.
    """
    for part in parts_of(source.get("normalizer")):
        if part.get("type") in ("Prepend", "Strip"):
            return True
    for part in parts_of(source.get("pre_tokenizer")):
        if part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") != "never":
            return True
        if part.get("type") == "ByteLevel" and part.get("add_prefix_space"):
            return True
    return False


def pieces(source: dict[str, Any]) -> dict[int, str]:
    """id -> token string of the model's vocabulary, added tokens left out."""
    vocabulary = source["model"]["vocab"]
    if isinstance(vocabulary, dict):
        return {index: text for text, index in vocabulary.items()}
    return {index: entry[0] for index, entry in enumerate(vocabulary)}


def bytes_by_id(source: dict[str, Any]) -> dict[int, bytes]:
    """id -> bytes that the token stands for, added tokens included."""
    alphabet = byte_alphabet() if is_byte_level(source) else None
    table: dict[int, bytes] = {}
    for index, text in pieces(source).items():
        table[index] = _from_alphabet(text, alphabet) if alphabet else _from_piece(text)
    for added in source.get("added_tokens") or []:
        content: str = added["content"]
        table[added["id"]] = content.encode() if alphabet else _from_piece(content)
    return table


def _from_alphabet(text: str, alphabet: dict[str, int]) -> bytes:
    try:
        return bytes([alphabet[character] for character in text])
    except KeyError:
        return text.encode()


def _from_piece(text: str) -> bytes:
    match = _BYTE.match(text)
    if match:
        return bytes([int(match[1], 16)])
    return text.replace("▁", " ").encode()
