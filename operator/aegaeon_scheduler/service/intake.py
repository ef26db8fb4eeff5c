"""New requests come behind reports and commands: they are admitted while the loop is not late, wait for a moment while
it is, and what would wait longer is refused with the time after which to come back.

Tenants with requests here have equal shares: they are admitted in turn, and where no room is left, the one that has
most of it loses its newest. What was with an engine before goes on: it is admitted at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import NamedTuple

from aegaeon_proto.v1 import gateway_pb2
from aegaeon_scheduler.core.domain import GatewayId
from aegaeon_scheduler.service.lag import MOST_S, Lag
from aegaeon_scheduler.service.sequences import Origin

LONGEST_S = 0.5
"""a request waits here; then another scheduler, or a later moment, serves it better"""
ROOM = 512
_LOOK_S = 0.01
_AT_ONCE = 8  # admitted between two looks at the lag: some milliseconds of work
_LONGEST_RETRY_S = 60.0


class Waiting(NamedTuple):
    """A submission, and since when it waits."""

    origin: Origin
    submit: gateway_pb2.Submit
    since: float


class Intake:
    """Owner of the submissions that wait. `admit` takes one; `refuse` says why it is not taken, and when to retry."""

    def __init__(
        self,
        lag: Lag,
        clock: Callable[[], float],
        admit: Callable[[Origin, gateway_pb2.Submit], None],
        refuse: Callable[[Origin, gateway_pb2.Submit, str, float], None],
    ) -> None:
        self._lag = lag
        self._clock = clock
        self._admit = admit
        self._refuse = refuse
        self._tenants: dict[str, deque[Waiting]] = {}  # none is empty; the first is the next to be admitted
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
        if len(self) > ROOM:
            largest = max(self._tenants, key=lambda tenant: (len(self._tenants[tenant]), tenant == submit.tenant))
            self._turn_down(self._tenants[largest].pop())
            self._drop_empty()
        self._arm()

    def cancel(self, gateway: GatewayId, request: str, choices: Collection[int]) -> None:
        """The reader of these choices (none named: of all) has left."""
        for one in self._all():
            if one.origin.gateway == gateway and one.submit.request == request:
                left = [choice for choice in one.submit.choices if choices and choice.choice not in choices]
                del one.submit.choices[:]
                one.submit.choices.extend(left)
        self._keep(lambda one: bool(one.submit.choices))

    def forget(self, gateway: GatewayId) -> None:
        """It submits anew what it still wants, or is gone."""
        self._keep(lambda one: one.origin.gateway != gateway)

    def stop(self) -> None:
        """Nothing is admitted any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Admit of each tenant in turn while the loop is not late; refuse what has waited too long."""
        self._timer = None
        for _ in range(_AT_ONCE):
            if not self._tenants or self._lag.exceeded:
                break
            tenant = next(iter(self._tenants))
            waiting = self._tenants.pop(tenant)
            one = waiting.popleft()
            if waiting:
                self._tenants[tenant] = waiting  # behind all others
            self._admit(one.origin, one.submit)
        since = self._clock() - LONGEST_S
        for waiting in self._tenants.values():
            while waiting and waiting[0].since < since:
                self._turn_down(waiting.popleft())
        self._drop_empty()
        self._arm()

    def _turn_down(self, one: Waiting) -> None:
        self.refused += 1
        late_s = self._lag.seconds
        reason = f"the scheduler is {1000 * late_s:.0f} ms late with what runs; try again"
        self._refuse(one.origin, one.submit, reason, min(max(1.0, late_s / MOST_S), _LONGEST_RETRY_S))

    def _all(self) -> list[Waiting]:
        return [one for waiting in self._tenants.values() for one in waiting]

    def _keep(self, wanted: Callable[[Waiting], bool]) -> None:
        self._tenants = {tenant: deque(filter(wanted, waiting)) for tenant, waiting in self._tenants.items()}
        self._drop_empty()

    def _drop_empty(self) -> None:
        self._tenants = {tenant: waiting for tenant, waiting in self._tenants.items() if waiting}

    def _arm(self) -> None:
        if self._tenants and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)


def _moved(submit: gateway_pb2.Submit) -> bool:
    """Whether it was with an engine before, or with an earlier scheduler."""
    return any(choice.epoch > 1 or choice.prefix for choice in submit.choices)
