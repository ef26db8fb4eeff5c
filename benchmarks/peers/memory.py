"""Memory of a process and all that it has started: what they have for themselves, and their shares of the rest."""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Self

_EVERY_S = 1.0


class Watch:
    """In a `with`: the largest sum of proportional set sizes so far, mapped files of weights among them."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="memory")
        self.peak_mib = 0.0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.peak_mib = max(self.peak_mib, sum(map(_mib, family(self._pid))))


def family(pid: int) -> list[int]:
    """The process and its descendants."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            children[int(stat.read_text().rpartition(")")[2].split()[1])].append(int(stat.parent.name))
    found = [pid]
    for one in found:
        found += children[one]
    return found


def _mib(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0
