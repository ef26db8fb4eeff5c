"""Which tests pytest-xdist may run on different workers.

Tests of a file stay on one worker, in their order, since they share servers; only in folders whose tests share nothing
that is expensive to make does each run on whichever worker is free. Files with the most tests begin first, among equals
those of whole stacks, which take longest: one that begins last leaves the other workers idle. (Groups of
`--dist loadgroup` do not work with pytest 9.2: xdist 3.8 writes them to an attribute that is no longer read.)
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SPREAD = {"backend", "gateway", "native", "operator", "scheduler_core", "sidecar", "simulator"}


LONGEST = {"stack", "demo"}


class Scheduling(LoadScopeScheduling):
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        return nodeid if PurePosixPath(file).parent.name in SPREAD else file


class SideBySide:
    """A plugin for the process that hands out tests, and for those that run them."""

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: item.path.parent.name not in LONGEST)

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Scheduling:
        return Scheduling(config, log)
