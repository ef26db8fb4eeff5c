"""AEGAEON_LOG_LEVEL is of every process: what it writes, and how a wrong level ends it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROCESSES = {
    "aegaeon_gateway": ("--config", "none.json"),
    "aegaeon_scheduler": ("--config", "none.json"),
    "aegaeon_sidecar": ("--config", "none.json"),
    "aegaeon_picker": ("--pool", "p", "--endpoints", "127.0.0.1:1"),
    "aegaeon_operator": (),
}
WRITE = """
import logging, os
from aegaeon_proto.logs import configure
configure(os.environ)
for name in ("aegaeon_gateway.http.serve", "botocore"):
    for level in ("debug", "info", "warning"):
        getattr(logging.getLogger(name), level)("a line")
"""


def environment(level: str) -> dict[str, str]:
    return {**os.environ, "AEGAEON_LOG_LEVEL": level}


@pytest.mark.parametrize(
    ("level", "own", "libraries"),
    [
        ("", ["INFO", "WARNING"], ["INFO", "WARNING"]),
        ("debug", ["DEBUG", "INFO", "WARNING"], ["INFO", "WARNING"]),
        ("warning", ["WARNING"], ["WARNING"]),
    ],
)
def test_a_level_says_which_lines_are_written(level: str, own: list[str], libraries: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WRITE], env=environment(level), capture_output=True, text=True, check=True
    )
    lines = [line.split()[2:4] for line in ended.stderr.splitlines()]
    assert lines == [
        *([name, "aegaeon_gateway.http.serve:"] for name in own),
        *([name, "botocore:"] for name in libraries),
    ]


@pytest.mark.parametrize("module", PROCESSES)
def test_every_process_refuses_a_level_that_does_not_exist(module: str, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", module, *PROCESSES[module]],
        cwd=tmp_path,
        env=environment("loud"),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 2
    assert "AEGAEON_LOG_LEVEL is 'loud'; it must be debug, info, warning" in ended.stderr
