"""Start-up is light, every verb answers --help, nothing of ours is installed under a stranger's name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tracemask_cli.main import VERBS

HEAVY = ("torch", "transformers", "pyarrow", "ray", "numpy", "pydantic", "tokenizers", "jinja2")


def modules_after(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split("\n")[-2].split(","))


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_and_version_import_nothing_heavy(arguments):
    code = (
        f"import sys; sys.argv = ['tracemask', *{arguments!r}]\n"
        "from tracemask_cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(','.join(sorted(sys.modules)))"
    )
    assert not modules_after(code) & set(HEAVY)


def test_importing_tracemask_imports_nothing_heavy():
    assert not modules_after("import sys, tracemask; print(','.join(sorted(sys.modules)))") & set(HEAVY)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself_without_torch(verb):
    code = (
        f"import sys; sys.argv = ['tracemask', {verb!r}, '--help']\n"
        "from tracemask_cli.main import main\n"
        "try:\n    main()\nexcept SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "print(','.join(sorted(sys.modules)))"
    )
    assert not modules_after(code) & {"torch", "transformers", "ray", "pyarrow"}


def test_an_unknown_verb_is_refused_with_exit_2():
    done = subprocess.run([sys.executable, "-m", "tracemask_cli.main", "convrt"], capture_output=True, text=True)
    assert done.returncode == 2
    assert "convrt" in done.stderr
    assert "Traceback" not in done.stderr


def test_public_names_resolve():
    import tracemask

    for name in tracemask.__all__:
        assert getattr(tracemask, name) is not None
    with pytest.raises(AttributeError):
        _ = tracemask.nothing
