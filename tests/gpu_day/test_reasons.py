"""The reason of a failed GPU test is printed when it fails, though the stage be cut off before its summary."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
FAILS = """
import time

def test_fails():
    assert 6 * 7 == 41, "the reason"

def test_hangs():
    time.sleep(600)
"""


def test_the_reason_of_a_failure_is_printed_before_the_last_test_has_ended(tmp_path: Path) -> None:
    (tmp_path / "gpu").mkdir()
    (tmp_path / "gpu" / "test_both.py").write_text(FAILS)
    (tmp_path / "conftest.py").write_text(
        "from gpu.reasons import Reasons\n"
        "def pytest_configure(config):\n"
        "    config.pluginmanager.register(Reasons(config))\n"
    )
    arguments = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--rootdir", str(tmp_path), "-c", "/dev/null", "gpu"]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "pytest", *arguments],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(TESTS), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        stdout=subprocess.PIPE,
    )
    seen, more = b"", b"."
    try:
        assert process.stdout is not None
        while more and b"the reason" not in seen and select.select([process.stdout], [], [], 30.0)[0]:
            seen += (more := os.read(process.stdout.fileno(), 4096))
    finally:
        process.kill()
        process.communicate()
    assert b"gpu/test_both.py::test_fails: call failed after" in seen
    assert b"AssertionError: the reason" in seen
