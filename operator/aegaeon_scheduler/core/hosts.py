"""Which weights each node's host memory holds, as its sidecars report it.

A node without reports counts as holding every model that it serves, so that this module changes no decision for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from aegaeon_scheduler.core.domain import ModelName


class Hosts:
    """Facts alone. What is on its way into a host cache does not count."""

    def __init__(self) -> None:
        self._cached: dict[str, frozenset[ModelName]] = {}

    @property
    def limited(self) -> bool:
        """True when some node may have to read weights from its disk."""
        return bool(self._cached)

    def report(self, node: str, cached: Iterable[ModelName]) -> None:
        """The whole list of one node."""
        self._cached[node] = frozenset(cached)

    def keep_only(self, nodes: Container[str]) -> None:
        """Forget what the others said: a cluster that scales gives every node that comes a new name."""
        self._cached = {node: cached for node, cached in self._cached.items() if node in nodes}

    def cached(self, node: str) -> frozenset[ModelName] | None:
        """The models that the node reported in its host memory; None without a report."""
        return self._cached.get(node)

    def has(self, node: str, name: ModelName) -> bool:
        """True when a load on this node is a copy from host memory."""
        cached = self._cached.get(node)
        return cached is None or name in cached
