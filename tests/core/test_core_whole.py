"""A file that somebody named is there whole or not at all, and what lay there before stays until then."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tracemask.core.whole import whole_file


def names(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def test_nothing_is_seen_before_the_end_and_nothing_remains_of_what_failed(tmp_path: Path) -> None:
    file = tmp_path / "a"
    with whole_file(file) as out:
        out.write(b"one")
        assert not file.exists()
    with pytest.raises(KeyboardInterrupt), whole_file(file) as out:
        out.write(b"two")
        raise KeyboardInterrupt
    assert file.read_bytes() == b"one" and names(tmp_path) == ["a"]


def test_rights_stay_and_links_are_followed(tmp_path: Path) -> None:
    file, link = tmp_path / "a", tmp_path / "link"
    file.write_bytes(b"old")
    file.chmod(0o600)
    link.symlink_to(file)
    with whole_file(link) as out:
        out.write(b"new")
    assert link.is_symlink() and file.read_bytes() == b"new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    (tmp_path / "dangling").symlink_to(tmp_path / "b")
    with whole_file(tmp_path / "dangling") as out:
        out.write(b"b")
    assert (tmp_path / "b").read_bytes() == b"b" and names(tmp_path) == ["a", "b", "dangling", "link"]


def test_a_new_file_has_the_rights_that_any_new_file_has(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    with whole_file(tmp_path / "whole"):
        pass
    assert (tmp_path / "whole").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_pipes_and_the_standard_output_are_written_as_they_are(tmp_path: Path) -> None:
    code = (
        "import sys; from tracemask.core.whole import whole_file\nwith whole_file(sys.argv[1]) as f: f.write(b'said')"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    def run(path: object, **more: object) -> None:
        subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60, env=env, **more)  # type: ignore[call-overload]

    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    run(fifo)
    assert os.read(reader, 9) == b"said"
    os.close(reader)
    log = tmp_path / "log"
    with log.open("wb") as out:
        run("/dev/stdout", stdout=out)
        place = os.fstat(out.fileno()).st_ino
    assert log.read_bytes() == b"said" and log.stat().st_ino == place
    run("/dev/null")


def test_what_cannot_be_written_is_the_system_s_own_error(tmp_path: Path) -> None:
    for path, error in ((tmp_path / "none" / "a", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error), whole_file(path):
            raise AssertionError("never entered")
    assert names(tmp_path) == []
