"""The operator's Prometheus metrics: reconciles, calls of the API server, and the state of each pool.
Series of pools have the labels `namespace` and `pool`, like the series of the pools' own pods, so monitors must set
`honorLabels`. Only the leader has them.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from aegaeon_operator.kube.client import Resource
from aegaeon_operator.reconcile.cluster.facts import Key
from aegaeon_operator.reconcile.cluster.figures import PoolFigures

_PREFIX = "aegaeon_operator"
# A reconcile of a pool at rest takes milliseconds; with two schedulers that do not answer it takes 5 s for each.
_LOOK_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CALL_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


@dataclass(slots=True)
class _Pool:
    """Figures of a pool; `seen_at`: its last reconcile without an error, seconds since 1970."""

    seen_at: float | None = None
    figures: PoolFigures = field(default_factory=PoolFigures)
    expiries: Mapping[str, datetime] = field(default_factory=dict)
    errors: Tally[str] = field(default_factory=Tally)


class Metrics:
    """The metrics, in a registry of their own, for several operators in one process. `now`: seconds since 1970."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace=_PREFIX, registry=self.registry)
        gauge = partial(Gauge, namespace=_PREFIX, registry=self.registry)
        histogram = partial(Histogram, namespace=_PREFIX, registry=self.registry)
        self.leads = gauge("leads", "1 while this process leads, 0 while it is a standby")
        self.queue_length = gauge("queue_length", "Pools that wait for a worker")
        self.running = gauge("reconciles_running", "Pools that are being reconciled")
        self.workers = gauge("workers", "Maximum number of concurrent reconciles")
        listed = "Time of the last full list without an error, seconds since 1970"
        self.listed = gauge("last_list_timestamp_seconds", listed)
        watched = "1 for a kind that is watched, 0 for a kind that the API server does not serve"
        self._watched = gauge("watched", watched, ["resource"])
        self._looks = histogram("reconcile_seconds", "Duration of a reconcile of a pool", buckets=_LOOK_BUCKETS)
        self._events = counter("watch_events", "Watch events, by kind of object", ["kind"])
        calls = "Calls of the API server, by verb, resource and status; code is none without an answer"
        self._calls = counter("api_requests", calls, ["verb", "resource", "code"])
        duration = "Duration of calls of the API server"
        self._call_seconds = histogram("api_request_seconds", duration, ["verb", "resource"], buckets=_CALL_BUCKETS)
        self._pools: dict[Key, _Pool] = {}
        self._now = now
        self.registry.register(_Pools(self._pools))

    @contextmanager
    def look(self, key: Key) -> Iterator[None]:
        """Measure a reconcile of a pool and count its error; a cancelled reconcile counts no error."""
        began = time.monotonic()
        try:
            yield
        except Exception as error:  # counted; the queue handles it
            self._of(key).errors[type(error).__name__] += 1
            raise
        finally:
            self._looks.observe(time.monotonic() - began)

    def seen(self, key: Key, figures: PoolFigures, expiries: Mapping[str, datetime]) -> None:
        """Record a reconcile without an error; `expiries`: of the pool's certificates, by role."""
        pool = self._of(key)
        pool.seen_at, pool.figures, pool.expiries = self._now(), figures, expiries

    def forget(self, key: Key) -> None:
        """Remove the series of a deleted pool."""
        self._pools.pop(key, None)

    def all_listed(self) -> None:
        """Record a full list."""
        self.listed.set(self._now())

    def watching(self, resources: Iterable[Resource], known: Collection[Resource]) -> None:
        """Record which of these resources are known and watched."""
        for resource in resources:
            self._watched.labels(resource.plural).set(resource in known)

    def event(self, kind: str) -> None:
        """Count a watch event."""
        self._events.labels(kind).inc()

    def called(self, method: str, path: str, status: int, seconds: float) -> None:
        """Record a call of the API server; `status` 0: no answer."""
        verb, resource = verb_and_resource(method, path)
        self._calls.labels(verb, resource, str(status) if status else "none").inc()
        self._call_seconds.labels(verb, resource).observe(seconds)

    async def render(self) -> bytes:
        """Return all metrics in the text format, written in a thread, since there may be thousands of lines."""
        return await asyncio.to_thread(generate_latest, self.registry)

    def _of(self, key: Key) -> _Pool:
        return self._pools.setdefault(key, _Pool())


class _Pools(Collector):
    """The series of each pool."""

    def __init__(self, pools: Mapping[Key, _Pool]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        """Yield a family for each figure; it runs in a thread while pools are added and removed."""
        pools = list(self._pools.items())
        yield from (_looked(pools), _errors(pools), _refused(pools), _ready(pools), _expiries(pools))
        yield from _pods(pools)


Pools = list[tuple[Key, _Pool]]


def _looked(pools: Pools) -> Metric:
    text = "Time of the last reconcile of the pool without an error, seconds since 1970."
    family = GaugeMetricFamily(f"{_PREFIX}_last_reconcile_timestamp_seconds", text, labels=["namespace", "pool"])
    for key, pool in pools:
        if pool.seen_at is not None:
            family.add_metric(key, pool.seen_at)
    return family


def _errors(pools: Pools) -> Metric:
    text = "Reconciles with an error, by class: KubeError is the API server's, others are bugs or settings."
    family = CounterMetricFamily(f"{_PREFIX}_reconcile_errors", text, labels=["namespace", "pool", "error"])
    for key, pool in pools:
        for error, count in list(pool.errors.items()):
            family.add_metric((*key, error), count)
    return family


def _refused(pools: Pools) -> Metric:
    text = "Objects of the pool that the API server refuses, by kind."
    family = GaugeMetricFamily(f"{_PREFIX}_refused_objects", text, labels=["namespace", "pool", "kind"])
    for key, pool in pools:
        for kind, count in pool.figures.refused.items():
            family.add_metric((*key, kind), count)
    return family


def _ready(pools: Pools) -> Metric:
    text = "1 while a GpuPool or ModelPool is Ready, else 0, with the reason. `pool` is the GpuPool of both."
    labels = ["namespace", "pool", "kind", "name", "reason"]
    family = GaugeMetricFamily(f"{_PREFIX}_ready", text, labels=labels)
    for key, pool in pools:
        for state in pool.figures.readiness:
            family.add_metric((state.namespace, key.name, state.kind, state.name, state.reason), state.ready)
    return family


def _expiries(pools: Pools) -> Metric:
    text = "Expiry of the pool's certificates, seconds since 1970, by role; `ca` is the pool's authority."
    name = f"{_PREFIX}_certificate_expiry_timestamp_seconds"
    family = GaugeMetricFamily(name, text, labels=["namespace", "pool", "role"])
    for key, pool in pools:
        for role, when in pool.expiries.items():
            family.add_metric((*key, role), when.timestamp())
    return family


def _pods(pools: Pools) -> Iterator[Metric]:
    labels = ["namespace", "pool", "component"]
    desired = GaugeMetricFamily(f"{_PREFIX}_pods_wanted", "Desired pods of the component.", labels=labels)
    ready = GaugeMetricFamily(f"{_PREFIX}_pods_ready", "Ready pods of the component.", labels=labels)
    for key, pool in pools:
        for pods in pool.figures.pods:
            desired.add_metric((*key, pods.component), pods.desired)
            ready.add_metric((*key, pods.component), pods.ready)
    yield from (desired, ready)


def verb_and_resource(method: str, path: str) -> tuple[str, str]:
    """Return the verb and the resource (with its subresource) of a call in the terms of RBAC; discovery is a
    resource, too."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if not rest:
        return "get", "discovery"
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    verb = _VERBS.get(method) or ("get" if len(rest) > 1 else "list")
    return verb, "/".join([rest[0], *rest[2:3]])
