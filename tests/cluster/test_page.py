"""Commands are taken from the documentation and run as they stand there; what they name is in the repository."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import pytest
from e2e.cluster.errors import ClusterError
from e2e.kubectl import REPOSITORY
from e2e.page import commands, run_commands
from e2e.polling import poll

FIRST_MODEL = REPOSITORY / "docs/guides/first-model.md"


@pytest.fixture
def page(tmp_path: Path) -> Path:
    file = tmp_path / "page.md"
    file.write_text(
        "# A\n```\nfirst\n```\nsays\n```text\nan answer\n```\n## B\n```\nsecond \\\n  third\n```\n## C\n", "utf-8"
    )
    return file


def test_command_blocks_are_read_in_order_and_without_their_output(page: Path) -> None:
    assert commands(page) == ["first\n", "second \\\n  third\n"]
    assert commands(page, "B") == ["second \\\n  third\n"]
    assert commands(page, "C") == []
    with pytest.raises(KeyError):
        commands(page, "D")


def running(*command_lines: str) -> bool:
    """Whether a process has one of these command lines, as the kernel gives them."""
    found = set()
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # ended meanwhile
            found.add(file.read_text("utf-8", "replace"))
    return not found.isdisjoint(command_lines)


def test_one_shell_runs_all_blocks_and_nothing_is_left_in_the_background() -> None:
    killed, left = (f"{1e6 + os.getpid():.0f}.{number}" for number in (1, 2))  # seconds that no other test sleeps

    printed = run_commands(
        [f"export SAID=$GIVEN; sleep {killed} &\n", 'echo "it is $SAID"; kill %1\n', f"sleep {left} &\n"], GIVEN="so"
    )

    assert "\nit is so\n" in printed
    poll("both have ended", lambda: not running(f"sleep\0{killed}\0", f"sleep\0{left}\0"), 10)


def test_a_command_that_fails_ends_it_and_is_named() -> None:
    with pytest.raises(ClusterError, match=r"ended with 3:[\s\S]*0 s: sh -c 'exit 3'"):
        run_commands(["sh -c 'exit 3'\n", "echo not here\n"])


def test_objects_named_by_the_first_models_commands_exist() -> None:
    text = "".join(commands(FIRST_MODEL))
    paths = re.findall(r"(?:helm|examples)/[\w./-]*", text)
    targets = re.findall(r"make (?:-s )?([a-z-]+)", text)

    assert {"helm/aegaeon", "examples/kubernetes/modelpool.yaml"} <= set(paths)
    assert not [path for path in paths if not (REPOSITORY / path).exists()]
    makefile = (REPOSITORY / "Makefile").read_text("utf-8")
    assert targets
    assert not [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)]
