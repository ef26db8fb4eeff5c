"""The pool as people see it: the core's snapshot, with the catalog's word on each model."""

from __future__ import annotations

from collections.abc import Callable

from aegaeon_proto.v1 import gateway_pb2
from aegaeon_scheduler.config import SchedulerConfig
from aegaeon_scheduler.service.catalog import Catalog
from aegaeon_scheduler.service.driver import Brain


class StatusView:
    """Takes pictures of the pool."""

    def __init__(self, config: SchedulerConfig, brain: Brain, clock: Callable[[], float], catalog: Catalog) -> None:
        self._config = config
        self._brain = brain
        self._clock = clock
        self._catalog = catalog
        self._started = clock()

    def status(self) -> gateway_pb2.PoolStatus:
        """The wire's form of the newest picture."""
        return gateway_pb2.PoolStatus(
            pool=self._config.pool,
            uptime_s=self._clock() - self._started,
            policy=self._config.policy.name,
            fetching=self._catalog.fetching(),
        )
