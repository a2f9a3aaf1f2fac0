"""One self-contained HTML file: markup, style, script and data, under a policy that forbids everything else."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def _part(name: str) -> str:
    return (files("tracemask.report") / "templates" / name).read_text(encoding="utf-8")


def _policy_hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def embed(data: Any) -> str:
    """JSON that no HTML parser can mistake for markup: <, >, & and the JavaScript line separators are escaped."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page(data: dict[str, Any]) -> str:
    """The whole file. data: what tracemask.report.page.Page.data returns. Loads and sends nothing."""
    from jinja2 import Environment
    from markupsafe import Markup

    style, script = _part("report.css"), _part("report.js")
    environment = Environment(autoescape=True, keep_trailing_newline=True)
    return environment.from_string(_part("report.html.jinja")).render(
        title=data["title"],
        style=Markup(style),
        script=Markup(script),
        style_hash=_policy_hash(style),
        script_hash=_policy_hash(script),
        data=Markup(embed(data)),
    )
