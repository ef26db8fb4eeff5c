"""The commands of a page of the documentation, run as a person would paste them: one shell, from the repository."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

from e2e.cluster.errors import ClusterError
from e2e.kubectl import REPOSITORY

# Blocks of commands are fenced without a language; what programs answer is fenced as `text`.
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## (.*)$", re.MULTILINE)


def commands(page: Path, heading: str | None = None) -> list[str]:
    """The blocks of a page in their order, or those below one of its headings. KeyError: there is no such heading."""
    text = page.read_text("utf-8")
    if heading is not None:
        _, *parts = _HEADING.split(text)
        text = dict(zip(parts[::2], parts[1::2], strict=True))[heading]
    return [block for language, block in _BLOCK.findall(text) if not language]


def run_commands(blocks: list[str], **environment: str) -> str:
    """What they print, each command after the second in which it began. Raises ClusterError at the first that fails."""
    script = "set -euo pipefail\nPS4='+ ${SECONDS} s: '\nset -x\n" + "".join(blocks)
    with tempfile.TemporaryFile("w+") as output:  # a pipe would be held open by what they leave in the background
        shell = subprocess.Popen(
            ["bash", "-c", script],
            cwd=REPOSITORY,
            env={**_of_a_person(), **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = shell.wait()
        finally:
            _end_session(shell.pid)
        output.seek(0)
        text = output.read()
    if code:
        raise ClusterError(f"the page's commands ended with {code}:\n{text[-6000:]}")
    return text


def _of_a_person() -> dict[str, str]:
    """The environment without what a `make` that runs the tests tells those below it."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}


def _end_session(leader: int) -> None:
    """What was left in the background."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return
