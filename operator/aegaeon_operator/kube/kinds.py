"""Discovery of kinds that are defined while the operator runs, so that it watches them from then on.

kopf's own discovery needs the permission to read every definition of the cluster; API discovery needs none.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import Cluster, Resource

_log = logging.getLogger(__name__)


class Kinds:
    """The kinds of the operator. `known`: those that the API server served at the last list."""

    def __init__(self, cluster: Cluster, resources: Sequence[Resource], every_s: float) -> None:
        self.all = tuple(resources)
        self.known: frozenset[Resource] = frozenset()
        self._cluster = cluster
        self._every_s = every_s
        self._changed = asyncio.Condition()

    async def listed(self, known: frozenset[Resource]) -> None:
        """Record the kinds that a full list found."""
        if known != self.known and self.known:
            for change, kinds in self._differences(known):
                if kinds:
                    _log.info("kinds %s: %s", change, ", ".join(sorted(kind.plural for kind in kinds)))
        self.known = known
        async with self._changed:
            self._changed.notify_all()

    async def other_than(self, known: frozenset[Resource]) -> None:
        """Wait until a list finds other kinds than these."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.known != known)

    async def defined(self) -> None:
        """Wait until a missing kind is defined."""
        while True:
            await asyncio.sleep(self._every_s)
            for resource in self.all:
                if resource not in self.known and await self._is_defined(resource):
                    return

    async def _is_defined(self, resource: Resource) -> bool:
        try:
            return await self._cluster.knows(resource)
        except KubeError as error:
            _log.info("discovery of %s failed: %s", resource.plural, error)
            return False

    def _differences(self, known: frozenset[Resource]) -> Sequence[tuple[str, frozenset[Resource]]]:
        return ("added", known - self.known), ("removed", self.known - known)
