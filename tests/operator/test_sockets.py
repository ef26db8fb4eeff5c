"""Folders for unix sockets are short, private and swept away, wherever temporary files lie."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from aegaeon_operator.errors import RunnerError
from aegaeon_operator.podrunner import RunFolder, SocketFolder


@pytest.fixture
def far_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A TMPDIR of more than a hundred bytes, as jobs of computing clusters have, and no XDG_RUNTIME_DIR."""
    folder = tmp_path / ("job" * 30)
    folder.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_a_run_below_a_long_path_has_sockets_that_can_be_bound(far_away: Path) -> None:
    shared = far_away / "shm"
    shared.mkdir()
    run = RunFolder.create(far_away / "runs", shared, "a-pool-with-a-long-name")
    assert str(run.path).startswith(str(far_away))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run.sockets / "scheduler.sock"))
    assert stat.S_IMODE(run.sockets.stat().st_mode) == 0o700
    assert (run.path / "sockets" / "scheduler.sock").is_socket()
    run.remove()
    assert not run.sockets.exists()


def test_a_folder_lies_below_the_first_short_place(
    far_away: Path, monkeypatch: pytest.MonkeyPatch, sockets: Path
) -> None:
    with SocketFolder.create() as folder:
        assert folder.path.parent == Path("/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(far_away))
    with SocketFolder.create() as folder:
        assert folder.path.parent == Path("/tmp")
    monkeypatch.setattr(tempfile, "tempdir", str(sockets))
    with SocketFolder.create() as folder:
        assert folder.path.parent == sockets


def test_without_a_short_place_the_remedy_is_named(far_away: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda place, mode: place != "/tmp")
    with pytest.raises(RunnerError, match=r"none of /.*, /tmp is writable and has a short enough path; set TMPDIR"):
        SocketFolder.create()


def test_the_next_folder_sweeps_those_of_killed_owners_alone(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(sockets))
    script = (
        "import os\nfrom aegaeon_operator.podrunner.sockets import SocketFolder\n"
        "print(SocketFolder.create().path, flush=True)\nos.kill(os.getpid(), 9)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=False)
    dead, unclaimed = Path(said.stdout.strip()), sockets / "aegaeon-sockets-unclaimed"
    unclaimed.mkdir()
    assert dead.parent == sockets
    assert dead.is_dir()
    with SocketFolder.create() as living, SocketFolder.create():
        assert living.path.is_dir()
        assert not dead.exists()
        assert unclaimed.is_dir()
