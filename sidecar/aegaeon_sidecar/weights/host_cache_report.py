"""Tracks which catalog models the node's host cache holds: looked up after possible changes, and reported."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Lock

from aegaeon_sidecar.models.states import SETTLED_NS
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.table import ModelTable


@dataclass(frozen=True, slots=True)
class _Seen:
    """The state of the folder, and the identities of the catalog's files by model."""

    changed_ns: int
    files: dict[str, str]


class HostCacheReport:
    """Names of models in host memory, whichever engine brought them there. Thread-safe."""

    def __init__(self, table: ModelTable, cache: HostCache) -> None:
        self._table = table
        self._cache = cache
        self._lock = Lock()  # taken inside the engine's, never the other way round, and not during a look at the folder
        self._attachments = 0
        self._seen: object = None
        self._reported: list[str] | None = None

    def forget(self) -> None:
        """A new scheduler attached: the next `news` has the whole list."""
        with self._lock:
            self._attachments += 1
            self._seen = self._reported = None

    def news(self) -> list[str] | None:
        """The whole list when it differs from what was reported last, else None.

        None as well where a new scheduler attached meanwhile: the former one receives nothing any more.
        """
        with self._lock:
            attachment, before = self._attachments, self._seen
        seen = self._look()
        names = None if seen == before else self._names(seen)
        with self._lock:
            if names is None or attachment != self._attachments:
                return None
            self._seen = seen if time.time_ns() - seen.changed_ns > SETTLED_NS else None
            if names == self._reported:
                return None
            self._reported = names
            return names

    def _look(self) -> _Seen:
        with self._table.monitor.changed:
            files = {
                name: model.files.identity for name, model in self._table.models.items() if model.files is not None
            }
        return _Seen(self._cache.changed_ns(), files)

    def _names(self, seen: _Seen) -> list[str]:
        cached = self._cache.held(seen.files.values())
        return [name for name, identity in seen.files.items() if identity in cached]
