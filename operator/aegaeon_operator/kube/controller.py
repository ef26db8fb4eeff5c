"""Reconciles a pool: gather, decide, act. Level-based: the result does not depend on earlier events."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from aegaeon_kube.errors import KubeError
from aegaeon_operator.errors import SettingsError
from aegaeon_operator.kube import certificates, prefix_secret
from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.kube.events import post
from aegaeon_operator.kube.gather import ParsedPools, named_secrets, with_children
from aegaeon_operator.kube.lost_gateways import evict_lost
from aegaeon_operator.kube.metrics import Metrics
from aegaeon_operator.kube.relocation import Relocations
from aegaeon_operator.kube.scaling import replicas, standby
from aegaeon_operator.kube.schedulers import Schedulers
from aegaeon_operator.kube.secrets import Secrets
from aegaeon_operator.kube.statuses import Statuses
from aegaeon_operator.kube.store import Store
from aegaeon_operator.kube.writing import Writer
from aegaeon_operator.reconcile.cluster.desired import Decisions
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Key, Observed, Report, Subject
from aegaeon_operator.reconcile.cluster.figures import figures
from aegaeon_operator.reconcile.cluster.lost_gateways import LostGateways
from aegaeon_operator.reconcile.cluster.names import child
from aegaeon_operator.reconcile.cluster.platform import Platform, RedisAt
from aegaeon_operator.reconcile.cluster.readiness import (
    need_events,
)
from aegaeon_operator.reconcile.cluster.redundancy import standby_to_move
from aegaeon_operator.reconcile.cluster.report import Reports
from aegaeon_operator.reconcile.cluster.retained_facts import RetainedFacts
from aegaeon_operator.reconcile.cluster.role_change import superseded
from aegaeon_operator.reconcile.cluster.scaler import Scaler

_log = logging.getLogger(__name__)
# Periods of reconciles without an event: in progress, serving, at rest.
_SOON_S, _SERVING_S, _REST_S = 1.0, 5.0, 600.0
_MOST_EVENT_READS = 8
_NEVER = (-math.inf, "")


@dataclass(slots=True)
class _Memory:
    """State of a pool between reconciles; a new operator rebuilds it with a few reads."""

    writer: Writer
    statuses: Statuses
    schedulers: Schedulers
    parsed: ParsedPools = field(default_factory=ParsedPools)
    decisions: Decisions = field(default_factory=Decisions)
    reports: Reports = field(default_factory=Reports)
    expiries: dict[str, datetime] = field(default_factory=dict)
    scaler: Scaler = field(default_factory=Scaler)
    retained: RetainedFacts = field(default_factory=RetainedFacts)
    lost_gateways: LostGateways = field(default_factory=LostGateways)
    warnings: dict[Subject, tuple[float, str]] = field(default_factory=dict)
    """message of an object's newest Warning Event, with the time of the read"""


class Controller:
    """Reconciles pools. `clock` is monotonic, in seconds; no `namespaces`: all."""

    def __init__(
        self,
        cluster: Cluster,
        store: Store,
        platform: Platform,
        clock: Callable[[], float] = time.monotonic,
        metrics: Metrics | None = None,
        namespaces: tuple[str, ...] = (),
    ) -> None:
        self._cluster = cluster
        self._store = store
        self._platform = platform
        self._metrics = metrics or Metrics()
        self._clock = clock
        self._memories: dict[Key, _Memory] = {}
        self.secrets = Secrets(cluster, clock, self._look_at, namespaces or (None,))
        self.relocations = Relocations(cluster, clock)
        self.look_at: Callable[[Collection[Key]], None] = lambda keys: None
        """called with pools to reconcile at once: a pool without engines received a request, or an object changed while
        its status was written"""

    def _look_at(self, keys: Collection[Key]) -> None:
        self.look_at(keys)  # assigned after the constructor

    async def reconcile(self, key: Key) -> float:
        """Reconcile a pool; return the seconds until the next reconcile, infinity if the pool does not exist.

        Raises KubeError, after which the caller retries.
        """
        memory = self._memories.get(key) or self._new_memory()
        self._memories[key] = memory
        observed = await self._gather(key, memory)
        if observed.gpu_pool is None and not observed.model_pools:
            await self._forget(key)
            self._metrics.forget(key)
            return math.inf
        failures = await self._certify(observed, memory)
        desired = memory.decisions.of(observed)
        failures |= await memory.writer.write(desired, observed.children)
        observed = with_children(observed, self._store.children_of(key))
        schedulers = memory.schedulers
        await schedulers.exchange(observed, desired)
        if lost := memory.lost_gateways.to_evict(observed, schedulers.facts, self._clock()):
            await evict_lost(self._cluster, observed, lost)
        warnings = await self._warnings(observed, memory)
        keeps_standby = await self._part(observed, schedulers.stands_by)
        facts = memory.retained.of(schedulers.facts, self._clock())
        observed = replace(
            observed,
            scheduler=facts,
            unreachable="" if facts else schedulers.unreachable,
            warnings=warnings,
            keeps_standby=keeps_standby,
        )
        reports = memory.reports.of(observed, desired, failures)
        await memory.statuses.write(reports, self.look_at)
        self._metrics.seen(key, figures(observed, reports, failures), memory.expiries)
        requested = await schedulers.follow_demand(observed, lambda key: self.look_at([key]))
        return 0.0 if requested else min(self._again_in(observed, memory, reports), memory.writer.again_in())

    async def close(self) -> None:
        """End all channels."""
        for key in list(self._memories):
            await self._forget(key)

    def _new_memory(self) -> _Memory:
        parts = (self._cluster, self._store, self._clock)
        return _Memory(Writer(*parts), Statuses(*parts), Schedulers(self._clock))

    async def _gather(self, key: Key, memory: _Memory) -> Observed:
        observed = memory.parsed.observe(key, self._store.texts_of(key), datetime.now(UTC), self._platform)
        secrets = await self.secrets.of(key, named_secrets(observed))
        now, facts = self._clock(), memory.schedulers.facts
        if spec := observed.spec:
            observed = replace(observed, replicas=memory.scaler.step(spec, replicas(observed), facts, now))
        return replace(
            observed,
            superseded=superseded(observed, facts),
            secrets=secrets.content,
            unreadable=secrets.unreadable,
            scheduler=facts,
            redis=read_files(self._platform.redis),
            failover=memory.schedulers.failover.needs_second(standby(observed), now),
        )

    async def _certify(self, observed: Observed, memory: _Memory) -> dict[ChildKey, str]:
        """Ensure the certificates; return the errors."""
        key, pool = observed.key, observed.gpu_pool
        if pool is None:
            memory.expiries = {}  # deleted with it, while ModelPools may remain
        if pool is None or pool.value is None:
            return {}
        try:
            certified = await certificates.ensure(
                self._cluster, key, pool, observed.children, observed.now, memory.schedulers.certificates
            )
        except KubeError as error:
            if error.is_unavailable:
                raise
            return {ChildKey("Secret", key.namespace, child(key, "ca")): str(error)}
        memory.expiries = certified.expiries
        try:
            secret = await prefix_secret.ensure(self._cluster, key, pool, observed.children)
        except KubeError as error:
            if error.is_unavailable:
                raise
            certified.failures[prefix_secret.prefix_secret(key)] = str(error)
        else:
            certified.written += [secret] if secret else []
        for answer in certified.written:  # newer than the watch's state
            self._store.put(answer)
        if certified.own != memory.schedulers.certificates:
            await memory.schedulers.renew(certified.own)
        return certified.failures

    async def _warnings(self, observed: Observed, memory: _Memory) -> dict[ChildKey, str]:
        """Return messages of Warning Events of the first few objects that need them; none if the API server fails.

        They are cached, since the API server reads all Events of the namespace for one object.
        """
        now, before, memory.warnings = self._clock(), memory.warnings, {}
        try:
            for subject in need_events(observed)[:_MOST_EVENT_READS]:
                known = before.get(subject, _NEVER)
                fresh = now - known[0] < _SERVING_S
                memory.warnings[subject] = known if fresh else (now, await self._cluster.warning(subject))
        except KubeError as error:
            _log.info("%s/%s: no Events: %s", observed.key.namespace, observed.key.name, error)
        return {subject.key: message for subject, (_, message) in memory.warnings.items()}

    async def _part(self, observed: Observed, stands_by: str) -> str:
        """Move the standby to another node than the leader's; return why it stays for now. Raises KubeError."""
        pod = standby_to_move(observed, stands_by)
        if pod is None or observed.gpu_pool is None:
            return ""
        key = observed.key
        keeps = await self.relocations.consider(f"standby of {key.namespace}/{key.name}", pod)
        if not keeps:
            name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
            text = f"evicted standby {name} from node {node}, which it shares with the leader: another node is free"
            pool = ChildKey("GpuPool", key.namespace, key.name)
            await post(self._cluster, Subject(pool, observed.gpu_pool.uid), "StandbyMoved", text)
        return keeps or "it is being moved"

    def _again_in(self, observed: Observed, memory: _Memory, reports: list[Report]) -> float:
        schedulers = memory.schedulers
        if schedulers.facts is None and (schedulers.unreachable or memory.retained.lasts):
            return _SOON_S
        unwatched_s = _SERVING_S if need_events(observed) else _REST_S  # Events are not watched
        if schedulers.facts is None:
            return unwatched_s
        if memory.lost_gateways.since:
            return _SOON_S
        conditions = (condition for report in reports for condition in report.status["conditions"])
        ready = [condition["status"] for condition in conditions if condition["type"] == "Ready"]
        return min(_SERVING_S, schedulers.progress.again_in) if all(status == "True" for status in ready) else _SOON_S

    async def _forget(self, key: Key) -> None:
        memory = self._memories.pop(key, None)
        self.secrets.forget(key)
        if memory:
            await memory.schedulers.disconnect()


def read_files(redis: RedisAt | None) -> dict[str, str]:
    """Read the files in each reconcile, since a mounted Secret may change. Raises SettingsError."""
    try:
        return {name: file.read_text("utf-8") for name, file in redis.files.items()} if redis else {}
    except OSError as error:
        raise SettingsError(
            f"{error.filename}: cannot be read: {error.strerror}; see `redis` in the chart's values"
        ) from error
