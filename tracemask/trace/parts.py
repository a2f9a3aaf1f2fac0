"""Content parts under the names that chat, Responses and Messages APIs give them, as blocks. Knows no message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tracemask.core.errors import TraceError
from tracemask.trace.blocks import Block, Media, Opaque, Text
from tracemask.trace.fields import Fields

TEXTS = frozenset({"text", "input_text", "output_text", "summary_text", "reasoning_text"})
MEDIA = frozenset(
    f"{before}{kind}{after}"
    for kind in ("image", "audio", "video", "file", "document")
    for before in ("", "input_")
    for after in ("", "_url")
)


def content_blocks(content: Any, where: str) -> list[Block]:
    """The blocks of a content: null, a string, or a list of parts. Raises TraceError TM911 naming the part."""
    if content is None:
        return []
    if isinstance(content, str):
        return [Text(text=content)]
    if not isinstance(content, list):
        raise TraceError("TM911", where=where, what="expected a string, null or a list of parts")
    return [part_block(raw, f"{where}[{index}]") for index, raw in enumerate(cast("list[Any]", content))]


def part_block(raw: Any, where: str) -> Block:
    """One part: text with what stands beside it, media kept whole, or a kind to come, kept whole."""
    if isinstance(raw, str):
        return Text(text=raw)
    part = Fields(raw, where)
    kind = part.take_str("type") or ("text" if part.has("text") else None)
    if kind in TEXTS:
        text = part.take_str("text")
        if text is None:
            raise part.error("text", "missing")
        return Text(text=text, **part.rest())
    if kind is None:
        raise part.error("type", "missing", fix="a content part needs a type")
    return media_block(part.raw) if kind in MEDIA else Opaque(kind=kind, data=dict(part.raw))


def media_block(part: Mapping[str, Any], **given: Any) -> Media:
    """An image, sound, video or file: the part whole, its address where it names one, its media type or kind.

    given: fields of Media that the caller knows better.
    """
    kind = str(part.get("type")).removeprefix("input_").removesuffix("_url")
    inner = next((value for value in part.values() if isinstance(value, Mapping)), {})
    mime = part.get("mime_type") or cast("Mapping[str, Any]", inner).get("media_type")
    found: dict[str, Any] = {"mime": mime if isinstance(mime, str) else f"{kind}/*", "uri": _uri(part)}
    return Media(**(found | given), part=dict(part))


def _uri(part: Mapping[str, Any]) -> str | None:
    """The address in a media part, where it is one and not the data itself."""
    for value in part.values():
        value = cast("Mapping[str, Any]", value).get("url") if isinstance(value, Mapping) else value
        if isinstance(value, str) and "://" in value[:12]:
            return value
    return None
