"""Models that are fetched because requests wait for them: how many are before each, and how long it takes.

Files of one source come a few at a time and share its link, so a model is there when all before it are as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from aegaeon_sidecar.weights.models import Model
from aegaeon_sidecar.weights.table import ModelTable

_WEIGHT = 0.3  # of the newest fetch in the mean


class FetchQueue:
    """Models in the order of their requests. Thread-safe."""

    def __init__(self, table: ModelTable, tell: Callable[[Model], None]) -> None:
        self._table = table
        self._tell = tell
        self._joined_s: dict[Model, float] = {}
        self._usual_s = 0.0  # of one fetch; 0 until one is over

    def join(self, model: Model) -> None:
        """Add a model that is to be fetched."""
        with self._table.monitor.changed:
            self._joined_s[model] = time.monotonic()
            self._count()

    def leave(self, model: Model, *, fetched: bool = False) -> None:
        """Remove a model that was fetched or will not be: the others move up. Idempotent."""
        with self._table.monitor.changed:
            if (joined_s := self._joined_s.pop(model, None)) is None:
                return
            if fetched:
                took_s = time.monotonic() - (model.pace.began_s or joined_s)
                self._usual_s += (_WEIGHT if self._usual_s else 1.0) * (took_s - self._usual_s)
            self._moved()

    def advance(self, model: Model) -> None:
        """Note progress of a model; progress of the first one shortens the wait of the others."""
        with self._table.monitor.changed:
            if next(iter(self._joined_s), None) is model:
                self._moved()

    def _moved(self) -> None:
        self._count()
        for model in self._joined_s:
            self._tell(model)

    def _count(self) -> None:
        total_s = 0.0
        for ahead, model in enumerate(self._joined_s):
            total_s += model.pace.remaining_s or self._usual_s
            model.ahead, model.wait_s = ahead, total_s
