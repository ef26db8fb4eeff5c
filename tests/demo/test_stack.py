"""The stack's child process: what it says when it fails, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from aegaeon_cli.demo.errors import StackError
from aegaeon_cli.demo.processes import alive, descendants
from aegaeon_cli.demo.stack import Stack


async def test_errors_of_up_about_bad_manifests_reach_the_user(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text("kind: GpuPool\n")
    stack = Stack(tmp_path, tmp_path)
    with pytest.raises(StackError, match=r"pool\.yaml"):
        await stack.__aenter__()
    assert stack.leftovers == []


def test_a_plain_with_reports_the_same_and_leaves_no_pod(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text("kind: GpuPool\n")
    stack = Stack(tmp_path)
    with pytest.raises(StackError, match=r"pool\.yaml"):
        stack.__enter__()
    assert stack.leftovers == []
    assert stack.exit_status == 2
    with pytest.raises(StackError, match=r"no process of pod gateway"):
        stack.kill("gateway")


async def test_children_of_children_are_found_and_their_end_is_seen() -> None:
    nested = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', 'input()'])"
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", nested), stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    family = descendants(child.pid)
    while len(family) < 2:
        await asyncio.sleep(0.01)
        family = descendants(child.pid)
    assert all(alive(process) for process in family)
    await child.communicate(b"\n")
    assert not any(alive(process) for process in family)


def test_a_process_is_identified_by_pid_and_start_time() -> None:
    me = next(process for process in descendants(os.getpid()) if process.pid == os.getpid())
    assert alive(me)
    assert not alive(me._replace(started=me.started - 1))
