"""Processes of a cluster outlive the command that started them, and keep nothing of it."""

from __future__ import annotations

import os
from pathlib import Path

from e2e.cluster.layout import Layout
from e2e.cluster.processes import start, stop


def test_a_process_has_nothing_open_of_the_shell_that_made_the_cluster(tmp_path: Path) -> None:
    lock = os.open(tmp_path / "lock", os.O_CREAT | os.O_WRONLY)
    os.set_inheritable(lock, True)  # as a shell's `exec 9>lock` hands it on
    layout = Layout(tmp_path)
    started = start(layout, "sleeper", ["sleep", "60"])
    try:
        files = {os.readlink(file) for file in Path(f"/proc/{started.pid}/fd").iterdir()}
        assert str(tmp_path / "lock") not in files
        assert started.alive
    finally:
        stop(layout, started)
        os.close(lock)
