"""Models whose copies were evicted from this node, by any of its sidecars.

A model that is in use counts as used in the disk tier, where another sidecar looks for what to evict.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from aegaeon_proto.engine.catalog import ModelPhase
from aegaeon_sidecar.kv.sequences import SequenceTable
from aegaeon_sidecar.models.states import SETTLED_NS
from aegaeon_sidecar.weights.cache import HostCache
from aegaeon_sidecar.weights.disk import Stored
from aegaeon_sidecar.weights.models import Model
from aegaeon_sidecar.weights.sources import Sources
from aegaeon_sidecar.weights.table import ModelTable


class Evictions:
    """`put_off` is called, engine's lock held, with a model that would have to be fetched before it is loaded again."""

    def __init__(
        self,
        table: ModelTable,
        sequences: SequenceTable,
        cache: HostCache,
        sources: Sources,
        put_off: Callable[[Model], None],
    ) -> None:
        self._table = table
        self._sequences = sequences
        self._cache = cache
        self._sources = sources
        self._put_off = put_off
        self._seen = (0, 0)

    def look(self) -> None:
        """A few stats, unless something has come or gone; not on the event loop."""
        for stored in self._in_use():
            stored.touch()
        changed = self._sources.changed_ns(), self._cache.changed_ns()
        if changed == self._seen:
            return
        gone = {model: identity for model, stored, identity in self._loadable() if not stored.is_there}
        cached = self._cache.held(gone.values()) if gone else set()
        lost = [model for model, identity in gone.items() if identity not in cached]
        with self._table.monitor.changed:
            needed = [model for model in lost if model.needed]  # it may be unloaded without a change of the folders
            for model in lost:
                if not (model.forgotten or model.needed):
                    self._put_off(model)
        if not needed and time.time_ns() - max(changed) > SETTLED_NS:
            self._seen = changed

    def _in_use(self) -> list[Stored]:
        with self._table.monitor.changed:
            names = {sequence.model for sequence in self._sequences}
            models = [model for name, model in self._table.models.items() if name in names]
            located = [model.located for model in models if model.located is not None]
        return [copy.stored for copy in located if copy.stored is not None]

    def _loadable(self) -> list[tuple[Model, Stored, str]]:
        """Models that came from afar, their places on disk, and the identities of their files."""
        with self._table.monitor.changed:
            return [
                (model, model.located.stored, model.files.identity)
                for model in self._table.models.values()
                if model.phase is ModelPhase.CACHED and model.files is not None
                if model.located is not None and model.located.stored is not None
            ]
