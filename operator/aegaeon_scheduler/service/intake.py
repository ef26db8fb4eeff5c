"""Admission control by lag: new requests are admitted while the loop is not late, and wait for a moment while it is.

What would wait longer is refused where many wait, with the time after which to come back, so reports and commands go
first. Tenants with requests here have equal shares: they are admitted in turn, and where no room is left, the tenant
that has most of it loses its newest. What was with an engine before goes on: it is admitted at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from aegaeon_proto.v1 import gateway_pb2
from aegaeon_scheduler.core.domain import GatewayId
from aegaeon_scheduler.service.lag import LIMIT_S, Lag
from aegaeon_scheduler.service.sequences import Origin, remove_choices

LONGEST_S = 0.3
"""a request waits here; then a later moment serves it better"""
ROOM = 512
_LOOK_S = 0.01
_AT_ONCE = 8  # admitted between two looks at the lag: some milliseconds of work


class Waiting(NamedTuple):
    """A submission, and since when it waits."""

    origin: Origin
    submit: gateway_pb2.Submit
    since: float


class Intake:
    """Owner of the submissions that wait. `admit` takes one; `refuse` says why it is not taken."""

    def __init__(
        self,
        lag: Lag,
        clock: Callable[[], float],
        admit: Callable[[Origin, gateway_pb2.Submit], None],
        refuse: Callable[[Origin, gateway_pb2.Submit, str], None],
    ) -> None:
        self._lag = lag
        self._clock = clock
        self._admit = admit
        self._refuse = refuse
        self._tenants: dict[str, deque[Waiting]] = {}  # none is empty; the first is the next to be admitted
        self._requests: Counter[tuple[GatewayId, str]] = Counter()  # what waits, by its names
        self._timer: asyncio.TimerHandle | None = None
        self.refused = 0

    def __len__(self) -> int:
        return sum(map(len, self._tenants.values()))

    def offer(self, origin: Origin, submit: gateway_pb2.Submit) -> None:
        """Admit it, now or soon, or refuse it."""
        if _moved(submit) or not (self._tenants or self._lag.exceeded):
            self._admit(origin, submit)
            return
        self._tenants.setdefault(submit.tenant, deque()).append(Waiting(origin, submit, self._clock()))
        self._requests[origin.gateway, submit.request] += 1
        if len(self) > ROOM:
            largest = max(self._tenants, key=lambda tenant: (len(self._tenants[tenant]), tenant == submit.tenant))
            self._turn_down(self._take(largest, newest=True))
        self._arm()

    def cancel(self, gateway: GatewayId, request: str, choices: Collection[int]) -> None:
        """The reader of these choices (none named: of all) has left."""
        if (gateway, request) not in self._requests:
            return  # as most: it runs, or was refused
        self._keep(
            lambda origin, submit: (
                (origin.gateway, submit.request) != (gateway, request) or remove_choices(submit, choices)
            )
        )

    def forget(self, gateway: GatewayId) -> None:
        """Drop the waiting requests of a gateway: it submits them again, or is gone."""
        self._keep(lambda origin, _: origin.gateway != gateway)

    def stop(self) -> None:
        """Admit no more requests."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Admit of each tenant in turn while the loop is not late; refuse what has waited too long.

        A short queue may make it twice as late: when the load falls, what runs keeps the loop late for a while, and the
        few requests that come then add little to that.
        """
        self._timer = None
        limit_s = LIMIT_S if len(self) > _AT_ONCE else 2 * LIMIT_S
        for _ in range(_AT_ONCE):
            if not self._tenants or self._lag.seconds > limit_s:
                break
            waiting = self._next()
            self._admit(waiting.origin, waiting.submit)
        since = self._clock() - LONGEST_S
        for tenant, queue in list(self._tenants.items()):
            while queue and queue[0].since < since:
                few = len(self) <= _AT_ONCE
                self._end_wait(self._take(tenant), few)
        self._arm()

    def _end_wait(self, waiting: Waiting, few: bool) -> None:
        """End a wait that reached its limit. With few waiting requests, the loop is late for other reasons."""
        if few:
            self._admit(waiting.origin, waiting.submit)
        else:
            self._turn_down(waiting)

    def _next(self) -> Waiting:
        """The first tenant's oldest; the tenant's turn comes again after all others."""
        tenant = next(iter(self._tenants))
        waiting = self._take(tenant)
        if queue := self._tenants.pop(tenant, None):
            self._tenants[tenant] = queue
        return waiting

    def _take(self, tenant: str, newest: bool = False) -> Waiting:
        queue = self._tenants[tenant]
        waiting = queue.pop() if newest else queue.popleft()
        if not queue:
            del self._tenants[tenant]
        self._forget(waiting)
        return waiting

    def _forget(self, waiting: Waiting) -> None:
        name = waiting.origin.gateway, waiting.submit.request
        self._requests[name] -= 1
        if not self._requests[name]:
            del self._requests[name]

    def _turn_down(self, waiting: Waiting) -> None:
        self.refused += 1
        reason = f"the scheduler is {1000 * self._lag.seconds:.0f} ms late with what runs; try again"
        self._refuse(waiting.origin, waiting.submit, reason)

    def _keep(self, stays: Callable[[Origin, gateway_pb2.Submit], bool]) -> None:
        queues = {
            tenant: deque(waiting for waiting in queue if stays(waiting.origin, waiting.submit))
            for tenant, queue in self._tenants.items()
        }
        self._tenants = {tenant: queue for tenant, queue in queues.items() if queue}
        left = (waiting for queue in queues.values() for waiting in queue)
        self._requests = Counter((waiting.origin.gateway, waiting.submit.request) for waiting in left)

    def _arm(self) -> None:
        if self._tenants and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)


def _moved(submit: gateway_pb2.Submit) -> bool:
    """True when it was on an engine before, or with an earlier scheduler."""
    return any(choice.epoch > 1 or choice.prefix for choice in submit.choices)
