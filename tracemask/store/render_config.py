"""What a conversion renders with, as plain values that travel to workers, and what shards say of it. Knows no row."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from tracemask.store.schema import Profile, make_metadata

if TYPE_CHECKING:
    from tracemask.render.renderer import Renderer


@dataclass(frozen=True)
class RenderConfig:
    """What a Renderer is made of, as plain values that travel to workers.

    tokenizer: folder or file. template: Jinja source text, None: the tokenizer's own. date: ISO, None: the pinned one.
    """

    tokenizer: str
    template: str | None = None
    template_kwargs: tuple[tuple[str, Any], ...] = ()
    history: str = "auto"
    control_text: Literal["text", "ids"] = "text"
    stop: tuple[str, ...] | None = None
    backend: str = "auto"
    date: str | None = None

    def build(self) -> Renderer:
        """The renderer; one per process and configuration."""
        return _renderer(self)


@lru_cache(maxsize=4)
def _renderer(config: RenderConfig) -> Renderer:
    from tracemask.render.renderer import Renderer

    return Renderer(
        config.tokenizer,
        template=config.template,
        template_kwargs=dict(config.template_kwargs),
        history=config.history,
        control_text=config.control_text,
        stop=config.stop,
        backend=config.backend,
        date=config.date,
    )


def render_metadata(renderer: Renderer, *, profile: Profile | str = Profile.FAST) -> dict[str, Any]:
    """What shards say about the renderer that made them. invariants: the trace's own faults are in `findings`."""
    from tracemask.render.renderer import RENDERER_VERSION

    made = make_metadata(
        tokenizer_sha256=renderer.tokenizer.sha256,
        vocab_size=renderer.tokenizer.size,
        template_sha256=hashlib.sha256(renderer.template.source.encode()).hexdigest(),
        renderer_version=RENDERER_VERSION,
        profile=profile,
    )
    return {**made, "invariants": 1}
