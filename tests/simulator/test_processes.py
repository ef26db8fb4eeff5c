"""Processes that simulate side by side."""

from __future__ import annotations

import subprocess
import sys

PARENT = """
import os
from aegaeon_simulator.parallel import processes
if __name__ == "__main__":
    pool = processes(1)
    print(pool.submit(os.getpid).result(), flush=True)
    input()
"""


def test_worker_processes_end_when_their_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        parent.kill()
        assert parent.stdout.read() == b""  # returns when the last process that holds the pipe has ended
