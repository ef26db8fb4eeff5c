"""Kinds that are defined while the operator runs: it looks for those that it misses, and watches them from then on.

kopf could look for them itself, with the right to read every definition of the cluster; discovery needs no right.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import Cluster, Resource

_log = logging.getLogger(__name__)


class Kinds:
    """`all` that the operator works with; `known`: those that the API server had at the last list."""

    def __init__(self, cluster: Cluster, resources: Sequence[Resource], every_s: float) -> None:
        self.all = tuple(resources)
        self.known: frozenset[Resource] = frozenset()
        self._cluster = cluster
        self._every_s = every_s
        self._changed = asyncio.Condition()

    async def listed(self, known: frozenset[Resource]) -> None:
        """A list of everything has found these."""
        if known != self.known and self.known:
            names = {word: ", ".join(sorted(one.plural for one in kinds)) for word, kinds in self._differences(known)}
            _log.info("%s", "; ".join(f"kinds that are {word}: {which}" for word, which in names.items() if which))
        self.known = known
        async with self._changed:
            self._changed.notify_all()

    async def other_than(self, known: frozenset[Resource]) -> None:
        """Wait until a list has found other kinds than these."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.known != known)

    async def defined(self) -> None:
        """Wait until one that was missing is defined."""
        while True:
            await asyncio.sleep(self._every_s)
            for resource in self.all:
                if resource not in self.known and await self._is_defined(resource):
                    return

    async def _is_defined(self, resource: Resource) -> bool:
        try:
            return await self._cluster.knows(resource)
        except KubeError as error:
            _log.info("whether there are %s is unknown: %s", resource.plural, error)
            return False

    def _differences(self, known: frozenset[Resource]) -> Sequence[tuple[str, frozenset[Resource]]]:
        return ("defined now, and watched", known - self.known), ("gone", self.known - known)
