"""A pool's schedulers: a channel to each, exchange of state, the leader, and the first request where no engine runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.certificates import Files
from aegaeon_operator.kube.scheduler import SchedulerLink
from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Key, Observed, SchedulerFacts
from aegaeon_operator.reconcile.cluster.failover import Failover
from aegaeon_operator.reconcile.cluster.names import SCHEDULERS, admin_of, admin_target, child
from aegaeon_operator.reconcile.cluster.progress import ProgressMonitor
from aegaeon_operator.reconcile.cluster.readiness import ending_engines, lingering_schedulers, ready_schedulers
from aegaeon_operator.reconcile.cluster.windows import Windows

_log = logging.getLogger(__name__)
Leader = tuple[int, str, SchedulerFacts]
"""term, name and facts"""


@dataclass(slots=True)
class Schedulers:
    """Owner of a pool's channels. `facts`: the leader's, or None; `unreachable`: the last error of a call."""

    clock: Callable[[], float]
    certificates: Files = field(default_factory=dict)
    facts: SchedulerFacts | None = None
    unreachable: str = ""
    stands_by: str = ""
    """component of the scheduler that reported itself as standby in the last reconcile, beside a leader"""
    failover: Failover = field(default_factory=Failover)
    progress: ProgressMonitor = field(default_factory=ProgressMonitor)
    _windows: Windows = field(default_factory=Windows)
    _links: dict[str, SchedulerLink] = field(default_factory=dict)
    _errors: dict[str, str] = field(default_factory=dict)
    """error of the last call by scheduler"""
    _leader: SchedulerLink | None = None
    _demand: asyncio.Task[None] | None = None
    _awaited: SchedulerLink | None = None
    """scheduler of that demand"""

    async def exchange(self, observed: Observed, desired: Desired) -> None:
        """Exchange state with every scheduler with a ready pod; note the facts of the leader."""
        self.facts = await self._exchange(observed, desired)

    async def follow_demand(self, observed: Observed, look_at: Callable[[Key], None]) -> bool:
        """Return whether a request is open in a pool without engines; else the leader reports the first at once."""
        if self.facts is None or self._leader is None or 0 not in observed.replicas.values():
            return False
        if self.facts.open_requests:
            return True
        if self._demand is None or self._demand.done() or self._awaited is not self._leader:
            if self._demand:
                self._demand.cancel()  # a former leader may still run, but receives no requests
            self._demand = asyncio.create_task(_await_demand(self._leader, observed.key, look_at))
            self._awaited = self._leader
        return False

    async def renew(self, certificates: Files) -> None:
        """Use other certificates from the next call on."""
        await self.disconnect()
        self.certificates = certificates

    async def disconnect(self) -> None:
        """Close all channels."""
        if self._demand:
            self._demand.cancel()
            await asyncio.wait([self._demand])
            self._demand = self._awaited = None
        links, self._links, self._leader = self._links, {}, None
        for link in links.values():
            await link.close()

    async def _exchange(self, observed: Observed, desired: Desired) -> SchedulerFacts | None:
        self.unreachable, self._leader, self.stands_by = "", None, ""
        if observed.gpu_pool is None:
            await self.disconnect()  # its schedulers are deleted with it, while ModelPools may remain
        if observed.spec is None:
            return None
        first = SCHEDULERS[0]
        targets = {name: _target(observed, name) for name in SCHEDULERS if ready_schedulers(observed, name)}
        answers = await self._ask_all(targets, observed, desired)
        leader = _leader_of(answers)
        if leader:
            self.stands_by = next((name for name, facts in answers.items() if facts and facts.standby), "")
        answered = answers[first] is not None if first in answers else None
        self.failover.observe(answered, leader is not None and leader[1] == first, self.clock())
        if leader is None:
            self.unreachable = self.unreachable or ("no scheduler leads" if targets else "")
        ending = {} if leader else lingering_schedulers(observed)
        for name in self._links.keys() - {*SCHEDULERS, *ending}:
            await self._links.pop(name).close()
        leader = leader or _leader_of(await self._ask_all(ending, observed, desired))
        if leader is None:
            return None
        _, name, facts = leader
        self.unreachable, self._leader = "", self._links[name]
        now = self.clock()
        return self._windows.of(self.progress.of(facts, now), now)

    async def _ask_all(
        self, targets: Mapping[str, str], observed: Observed, desired: Desired
    ) -> dict[str, SchedulerFacts | None]:
        """Exchange state with schedulers, by name of a Service or pod; return their facts by name."""
        for name, target in targets.items():
            if name in self._links and self._links[name].target != target:
                await self._links.pop(name).close()
            if name not in self._links:
                self._links[name] = SchedulerLink(target, self.certificates)
        answers = await asyncio.gather(*(self._ask(name, observed, desired) for name in targets))
        return dict(zip(targets, answers, strict=True))

    async def _ask(self, name: str, observed: Observed, desired: Desired) -> SchedulerFacts | None:
        key, spec, ending = observed.key, observed.spec, ending_engines(observed)
        assert spec is not None
        try:
            facts = await self._links[name].exchange(desired, spec.memory.slab_size)
            if ending:
                await self._links[name].tell_ending(ending)
        except KubeError as error:
            if name in SCHEDULERS:
                self.unreachable = str(error)
            if self._errors.get(name) != str(error):  # it is called every second
                _log.info("%s/%s: %s: %s", key.namespace, key.name, name, error)
            self._errors[name] = str(error)
            return None
        self._errors.pop(name, None)
        return facts


def _target(observed: Observed, name: str) -> str:
    """Return the cluster address of a scheduler's Service, or its DNS name before it has one.

    No names resolve while all replicas of the cluster's DNS are on a lost node, as after a drain of the other node.
    """
    service = observed.children.get(ChildKey("Service", observed.key.namespace, child(observed.key, name)), {})
    address = service.get("spec", {}).get("clusterIP")
    return admin_of(address) if address else admin_target(observed.key, name)


async def _await_demand(link: SchedulerLink, key: Key, look_at: Callable[[Key], None]) -> None:
    if await link.demand():
        look_at(key)


def _leader_of(answers: Mapping[str, SchedulerFacts | None]) -> Leader | None:
    leaders = [(facts.term, name, facts) for name, facts in answers.items() if facts and not facts.standby]
    return max(leaders, key=lambda leader: leader[0], default=None)
