"""An operator in front of an API server in memory, which looks at its pool when a test says so."""

from __future__ import annotations

from operator_memory import Memory
from operator_objects import KEY, PLATFORM

from aegaeon_operator.config import OperatorConfig
from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.kube.controller import Controller
from aegaeon_operator.kube.operator import list_all
from aegaeon_operator.kube.queue import Queue
from aegaeon_operator.kube.store import Store


class OperatorWorld:
    """`now`: the operator's clock, in seconds."""

    def __init__(self, memory: Memory, cluster: Cluster) -> None:
        self.memory, self.cluster, self.now = memory, cluster, 0.0
        self.restart()

    def restart(self) -> None:
        """Put an operator that remembers nothing in its place."""
        self.store = Store()
        self.controller = Controller(self.cluster, self.store, PLATFORM, lambda: self.now)

    async def list_all(self) -> None:
        """List everything anew."""
        queue = Queue(self.controller.reconcile, 1)
        await list_all(OperatorConfig(PLATFORM, (), "test"), self.cluster, self.store, queue)

    async def look(self) -> None:
        """List everything anew, and reconcile the pool."""
        await self.list_all()
        await self.controller.reconcile(KEY)
