"""Tracks which catalog models the node's host cache holds: looked up after possible changes, reported at heartbeats."""

from __future__ import annotations

import time
from threading import Lock

from aegaeon_sidecar.models.states import SETTLED_NS
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.table import ModelTable


class Held:
    """Names of models in host memory, whichever engine brought them there. Thread-safe."""

    def __init__(self, table: ModelTable, cache: HostCache) -> None:
        self._table = table
        self._cache = cache
        self._lock = Lock()
        self._seen: object = None
        self._reported: list[str] | None = None

    def forget(self) -> None:
        """A new scheduler attached: the next `news` has the whole list."""
        with self._lock:
            self._seen = self._reported = None

    def news(self) -> list[str] | None:
        """The whole list when it differs from what was reported last, else None."""
        with self._lock:
            names = self._look()
            if names is None or names == self._reported:
                return None
            self._reported = names
            return names

    def _look(self) -> list[str] | None:
        with self._table.monitor.changed:
            files = {
                name: model.files.identity for name, model in self._table.models.items() if model.files is not None
            }
        changed_ns = self._cache.changed_ns()
        seen = (changed_ns, files)
        if seen == self._seen:
            return None
        self._seen = seen if time.time_ns() - changed_ns > SETTLED_NS else None
        there = self._cache.held(files.values())
        return [name for name, identity in files.items() if identity in there]
