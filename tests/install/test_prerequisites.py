"""Set-up says in one sentence what the machine lacks, and which packages bring it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


# A machine on which nothing is to be had: no folder of programs, no headers, no ensurepip.
_BARE = """
import importlib.util, runpy, sys, sysconfig
sysconfig.get_path = lambda name: "/nonexistent"
importlib.util.find_spec = lambda name: None
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def looked(*command: str, path: str) -> tuple[int, str]:
    program = str(REPOSITORY / "native" / "prerequisites.py")
    done = subprocess.run(
        [sys.executable, *command, program, "python3.12"],
        env=os.environ | {"PATH": path},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


def test_a_machine_that_has_all_is_silent() -> None:
    assert looked(path=os.environ["PATH"]) == (0, "")


def test_what_is_missing_is_one_sentence_with_the_packages_of_this_python() -> None:
    code, said = looked("-c", _BARE, path="/nonexistent")
    assert code == 1
    assert said == (
        "missing: a C++ compiler, Python's headers, Python's venv; "
        "Debian, Ubuntu: apt-get install g++ python3.12-dev python3.12-venv\n"
    )
