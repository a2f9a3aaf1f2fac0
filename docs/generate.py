"""Write every generated file, or with --check compare and say which one is stale. `make regen`, `make schemas`.

A source is a module in docs/ with `pages()`: {path from the project's root: text}.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("generate_schemas", "generate_rules", "generate_recipes", "generate_cli")


def pages() -> dict[str, str]:
    """All generated files of the project."""
    sys.path.insert(0, str(Path(__file__).parent))
    out: dict[str, str] = {}
    for source in SOURCES:
        for path, text in import_module(source).pages().items():
            if path in out:
                raise ValueError(f"{path} is written by two sources")
            out[path] = text
    return out


def main(arguments: list[str]) -> int:
    """0 when everything is written or unchanged, 1 when --check finds a stale file."""
    stale = []
    for path, text in sorted(pages().items()):
        file = ROOT / path
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if "--check" not in arguments:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    word = "stale" if "--check" in arguments else "written"
    print(*[f"{word}: {path}" for path in stale] or ["generated files are up to date"], sep="\n")
    return int("--check" in arguments and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
