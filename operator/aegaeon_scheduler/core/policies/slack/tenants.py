"""Tenants of one model: whose prompt begins next where one asks for more than its part.

Start-time fair queueing (Goyal, Vin, Cheng 1996) over tenants. A clock belongs to a model: who is late first across
models is decided by rank. The state of a tenant goes once none of its prompts waits and it has had no more than others.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush


class Visit:
    """A tenant while it waits or has had more than others: engine seconds over weight that it has had, its weight, and
    the virtual time at which it last came."""

    __slots__ = ("came", "had", "weight")

    def __init__(self, had: float, weight: int) -> None:
        self.came = self.had = had
        self.weight = weight


class Clock:
    """Engine seconds over weight that tenants have had since their prompts wait together. The virtual time is what the
    tenant has had that waits and has had least; who comes anew begins there, with neither credit nor debt."""

    __slots__ = ("_demand", "_heap", "_level", "_total_s", "_visits", "_waiting", "weight")

    def __init__(self) -> None:
        self._visits: dict[str, Visit] = {}  # of those that wait, or have had more than the virtual time
        self._waiting: dict[str, int] = {}  # prompts
        self._demand: dict[str, float] = {}  # engine seconds of the same
        self._heap: list[tuple[float, str]] = []  # what visits have had, and what no longer holds
        self._level = self._total_s = 0.0
        self.weight = 0  # of all tenants of which a prompt waits

    @property
    def active(self) -> int:
        """Tenants of which a prompt waits."""
        return len(self._waiting)

    @property
    def known(self) -> int:
        """Tenants of which something is kept."""
        return len(self._visits)

    def arrive(self, tenant: str, cost_s: float, weight: int = 1) -> None:
        """A prompt of a tenant begins to wait. Its weight is the one of the last that came."""
        count = self._waiting.get(tenant, 0)
        visit = self._visits[tenant] if count else self._come(tenant, weight)
        self.weight += weight - (visit.weight if count else 0)
        visit.weight = weight
        self._waiting[tenant] = count + 1
        self._demand[tenant] += cost_s
        self._total_s += cost_s

    def _come(self, tenant: str, weight: int) -> Visit:
        """A tenant of which no prompt waits has one again: its visit goes on while it has had more than others."""
        now = self._now()
        visit = self._visits.get(tenant)
        if visit is None:
            visit = self._visits[tenant] = Visit(now, weight)
            self._note(tenant, now)
        visit.came = now
        self._put(tenant, visit, max(now, visit.had))
        self._demand[tenant] = 0.0
        return visit

    def reprice(self, tenant: str, more_s: float) -> None:
        """A prompt of a tenant that waits takes so much more than was thought."""
        self._demand[tenant] += more_s
        self._total_s += more_s

    def depart(self, tenant: str, cost_s: float) -> None:
        """A prompt of a tenant waits no longer."""
        self._waiting[tenant] -= 1
        self._demand[tenant] -= cost_s
        self._total_s -= cost_s
        if not self._waiting[tenant]:
            del self._waiting[tenant], self._demand[tenant]
            self.weight -= self._visits[tenant].weight
        if not self._waiting:
            self._heap.clear()
            self._visits.clear()
            self._level = self._total_s = 0.0

    def charge(self, tenant: str, seconds: float) -> Visit | None:
        """A tenant has had so much. Returns the visit to which it is charged; one that is level with all others is let
        off."""
        visit = self._visits.get(tenant)
        if visit is not None:
            self._put(tenant, visit, visit.had + seconds / visit.weight)
        return visit

    def settle(self, tenant: str, more_s: float, charged: Visit | None) -> None:
        """A tenant has had so much more, or less, than was charged to a visit. More is a debt in a later visit, too;
        less is no credit there, nor before the time at which it came: it began level with the others all the same."""
        visit = self._visits.get(tenant)
        if visit is not None and (more_s > 0.0 or visit is charged):
            least = min(visit.had, visit.came)
            self._put(tenant, visit, max(least, visit.had + more_s / visit.weight))

    @property
    def total_s(self) -> float:
        """Seconds that all prompts that wait are expected to take, with their answers."""
        return self._total_s

    def demand_s(self, tenant: str) -> float:
        """The same of a tenant."""
        return self._demand.get(tenant, 0.0)

    def lead(self, tenant: str, but_s: float = 0.0) -> float:
        """Seconds over weight that a tenant has had and now asks for, all prompts but one, beyond what the one has had
        that waits and has had least."""
        visit, demand_s = self._visits.get(tenant), max(0.0, self._demand.get(tenant, 0.0) - but_s)
        had = demand_s if visit is None else visit.had + demand_s / visit.weight
        return had - self._now()

    def order(self) -> Iterator[str]:
        """Tenants that wait, the one first that has had least."""
        self._now()
        if not self._heap:
            return
        first = self._heap[0][1]
        yield first
        yield from sorted(
            (name for name in self._waiting if name != first), key=lambda name: (self._visits[name].had, name)
        )

    def _now(self) -> float:
        """The virtual time. Clears away tenants that do not wait and have had no more."""
        heap = self._heap
        while heap and (heap[0][1] not in self._waiting or not self._holds(*heap[0])):
            had, tenant = heappop(heap)
            if tenant not in self._waiting and self._holds(had, tenant):
                del self._visits[tenant]
        if heap:
            self._level = max(self._level, heap[0][0])
        return self._level

    def _holds(self, had: float, tenant: str) -> bool:
        """Returns whether an entry of the heap is what a visit has had."""
        visit = self._visits.get(tenant)
        return visit is not None and visit.had == had

    def _put(self, tenant: str, visit: Visit, had: float) -> None:
        if visit.had != had:
            visit.had = had
            self._note(tenant, had)

    def _note(self, tenant: str, had: float) -> None:
        heappush(self._heap, (had, tenant))
        if len(self._heap) > 2 * len(self._visits):
            self._heap[:] = [(visit.had, tenant) for tenant, visit in self._visits.items()]
            heapify(self._heap)
