"""What Prometheus reads of the operator: looks at pools and calls of the API server as they happen, and of each pool
what the last look found.

Series of pools have the labels `namespace` and `pool`, as Prometheus gives them to series that pools' own pods expose;
a monitor must honor them. They are the leader's alone: a standby has none.
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
# A look at a pool at rest takes milliseconds; one whose scheduler does not answer 5 s for each of two.
_LOOK_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_CALL_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


@dataclass(slots=True)
class _Pool:
    """What is known of a pool; `seen_at`: its last look without an error, seconds since 1970."""

    seen_at: float | None = None
    figures: PoolFigures = field(default_factory=PoolFigures)
    expiries: Mapping[str, datetime] = field(default_factory=dict)
    errors: Tally[str] = field(default_factory=Tally)


class Metrics:
    """One registry for each operator, so that several may live in one process. `now`: seconds since 1970."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        counter = partial(Counter, namespace=_PREFIX, registry=self.registry)
        gauge = partial(Gauge, namespace=_PREFIX, registry=self.registry)
        histogram = partial(Histogram, namespace=_PREFIX, registry=self.registry)
        self.leads = gauge("leads", "1 while this process leads, 0 while it stands by")
        self.queue_length = gauge("queue_length", "Pools that are due and wait for a worker")
        self.running = gauge("reconciles_running", "Pools that workers look at")
        self.workers = gauge("workers", "Pools that can be looked at side by side")
        listed = "When everything was last listed without an error, seconds since 1970"
        self.listed = gauge("last_list_timestamp_seconds", listed)
        watched = "1 for a kind whose objects are watched, 0 for one that the API server does not know"
        self._watched = gauge("watched", watched, ["resource"])
        self._looks = histogram("reconcile_seconds", "One look at one pool", buckets=_LOOK_BUCKETS)
        self._events = counter("watch_events", "Changes that the watch has brought, by kind of object", ["kind"])
        made = "Calls of the API server, by verb, resource and status; code is none where there was no answer"
        self._calls = counter("api_requests", made, ["verb", "resource", "code"])
        took = "Calls of the API server, until their answer"
        self._call_seconds = histogram("api_request_seconds", took, ["verb", "resource"], buckets=_CALL_BUCKETS)
        self._pools: dict[Key, _Pool] = {}
        self._now = now
        self.registry.register(_Pools(self._pools))

    @contextmanager
    def look(self, key: Key) -> Iterator[None]:
        """Times a look at a pool, and counts it by the error that it ends in; a task that is cancelled ends in none."""
        began = time.monotonic()
        try:
            yield
        except Exception as error:  # whatever it is, it is counted; the queue answers it
            self._of(key).errors[type(error).__name__] += 1
            raise
        finally:
            self._looks.observe(time.monotonic() - began)

    def seen(self, key: Key, figures: PoolFigures, expiries: Mapping[str, datetime]) -> None:
        """A look has ended without an error; `expiries`: of the pool's certificates, by role."""
        pool = self._of(key)
        pool.seen_at, pool.figures, pool.expiries = self._now(), figures, expiries

    def forget(self, key: Key) -> None:
        """The pool is gone, and so are its series."""
        self._pools.pop(key, None)

    def all_listed(self) -> None:
        """Everything was listed."""
        self.listed.set(self._now())

    def watching(self, resources: Iterable[Resource], known: Collection[Resource]) -> None:
        """Objects of the known ones among these resources are watched."""
        for one in resources:
            self._watched.labels(one.plural).set(one in known)

    def event(self, kind: str) -> None:
        """The watch has brought a change."""
        self._events.labels(kind).inc()

    def called(self, method: str, path: str, status: int, seconds: float) -> None:
        """The API server was called; `status` 0: it did not answer."""
        verb, resource = asked(method, path)
        self._calls.labels(verb, resource, str(status) if status else "none").inc()
        self._call_seconds.labels(verb, resource).observe(seconds)

    async def render(self) -> bytes:
        """Everything, in the text format; thousands of lines are written beside the loop."""
        return await asyncio.to_thread(generate_latest, self.registry)

    def _of(self, key: Key) -> _Pool:
        return self._pools.setdefault(key, _Pool())


class _Pools(Collector):
    """The series that are of one pool each."""

    def __init__(self, pools: Mapping[Key, _Pool]) -> None:
        self._pools = pools

    def collect(self) -> Iterator[Metric]:
        """A family for each figure; in a thread, beside which pools come and go."""
        pools = list(self._pools.items())
        yield from (_looked(pools), _errors(pools), _refused(pools), _ready(pools), _expiries(pools))
        yield from _pods(pools)


Pools = list[tuple[Key, _Pool]]


def _looked(pools: Pools) -> Metric:
    said = "When the pool was last reconciled without an error, seconds since 1970."
    found = GaugeMetricFamily(f"{_PREFIX}_last_reconcile_timestamp_seconds", said, labels=["namespace", "pool"])
    for key, pool in pools:
        if pool.seen_at is not None:
            found.add_metric(key, pool.seen_at)
    return found


def _errors(pools: Pools) -> Metric:
    said = "Looks that ended in an error, by its class: KubeError is of the API server, others are bugs or settings."
    found = CounterMetricFamily(f"{_PREFIX}_reconcile_errors", said, labels=["namespace", "pool", "error"])
    for key, pool in pools:
        for error, count in list(pool.errors.items()):
            found.add_metric((*key, error), count)
    return found


def _refused(pools: Pools) -> Metric:
    said = "Objects of the pool that the API server refuses, by kind."
    found = GaugeMetricFamily(f"{_PREFIX}_refused_objects", said, labels=["namespace", "pool", "kind"])
    for key, pool in pools:
        for kind, count in pool.figures.refused.items():
            found.add_metric((*key, kind), count)
    return found


def _ready(pools: Pools) -> Metric:
    said = "1 while a GpuPool or ModelPool is Ready, else 0; why, in `reason`. `pool` is the GpuPool of both."
    labels = ["namespace", "pool", "kind", "name", "reason"]
    found = GaugeMetricFamily(f"{_PREFIX}_ready", said, labels=labels)
    for key, pool in pools:
        for one in pool.figures.readiness:
            found.add_metric((one.namespace, key.name, one.kind, one.name, one.reason), one.ready)
    return found


def _expiries(pools: Pools) -> Metric:
    said = "When a certificate of the pool expires, seconds since 1970, by role; `ca` is the pool's authority."
    name = f"{_PREFIX}_certificate_expiry_timestamp_seconds"
    found = GaugeMetricFamily(name, said, labels=["namespace", "pool", "role"])
    for key, pool in pools:
        for role, when in pool.expiries.items():
            found.add_metric((*key, role), when.timestamp())
    return found


def _pods(pools: Pools) -> Iterator[Metric]:
    labels = ["namespace", "pool", "component"]
    wanted = GaugeMetricFamily(f"{_PREFIX}_pods_wanted", "Pods that the pool should have.", labels=labels)
    ready = GaugeMetricFamily(f"{_PREFIX}_pods_ready", "Pods of it that are ready.", labels=labels)
    for key, pool in pools:
        for one in pool.figures.pods:
            wanted.add_metric((*key, one.component), one.wanted)
            ready.add_metric((*key, one.component), one.ready)
    yield from (wanted, ready)


def asked(method: str, path: str) -> tuple[str, str]:
    """The verb and the resource (with its subresource) of a call, as RBAC names them; of a question for kinds,
    discovery."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if not rest:
        return "get", "discovery"
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    verb = _VERBS.get(method) or ("get" if len(rest) > 1 else "list")
    return verb, "/".join([rest[0], *rest[2:3]])
