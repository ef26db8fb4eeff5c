"""docs/guides/first-model.md, word for word: from an empty cluster to the streamed answer of a model, and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster.layout import Layout
from e2e.installation import left, remove
from e2e.kubectl import REPOSITORY
from e2e.page import commands, run_commands
from e2e.polling import poll

# The first time, images are built from scratch.
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800, func_only=True)]
PAGE = REPOSITORY / "docs/guides/first-model.md"


@pytest.fixture
def empty(nodes: Layout) -> Iterator[Path]:
    """Its page makes a cluster, or takes the one that is up; nothing of ours is installed there."""
    remove(nodes.kubeconfig)
    yield nodes.kubeconfig
    remove(nodes.kubeconfig)


def test_the_pages_commands_end_in_a_streamed_answer_and_leave_nothing_behind(empty: Path) -> None:
    output = run_commands(commands(PAGE))

    print(output)
    answer = [line for line in output.splitlines() if line.startswith("data: ")]
    assert len(answer) > 3
    assert answer[-1] == "data: [DONE]"
    poll("nothing is left", lambda: not left(empty), 90)
