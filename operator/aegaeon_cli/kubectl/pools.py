"""A pool of a cluster: its pods, which of its schedulers leads, and what that one says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kubernetes import client

from aegaeon_cli.errors import CliError, NoAnswerError, RefusedError
from aegaeon_cli.kubectl.access import Json, Where
from aegaeon_cli.kubectl.forward import forwarded
from aegaeon_operator.reconcile.cluster.facts import Key
from aegaeon_operator.reconcile.cluster.names import SCHEDULER_STATUS, SCHEDULERS, child, selector


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a pool; `container` is ours, beside which a pod template may put others; `restarts` are its own, and
    `waits` is whether it is about to start (again)."""

    name: str
    component: str
    ready: bool
    phase: str
    container: str
    restarts: int
    waits: bool = False
    node: str = ""


def pools(where: Where) -> list[Key]:
    """Those of the namespace. Raises CliError."""
    found = (one["metadata"] for one in where.pools("gpupools"))
    return sorted(Key(one["namespace"], one["name"]) for one in found)


def the_pool(where: Where, name: str | None) -> Key:
    """The one of that name, or the only one. Raises CliError."""
    known = pools(where)
    fitting = [one for one in known if name in (None, one.name)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join("/".join(one) for one in fitting or known)
    if not fitting:
        raise CliError(f"{where.place} has no GpuPool{f' {name}; it has {names}' if name and known else ''}")
    raise CliError(f"{where.place} has several GpuPools: {names}; name one, and its namespace with -n")


def pods(where: Where, key: Key, component: str | None = None) -> list[Pod]:
    """Of a pool, or of a component of it. Raises CliError."""
    labels = ",".join(f"{name}={value}" for name, value in selector(key, component).items())
    return sorted((_pod(one) for one in where.pods(key.namespace, labels)), key=lambda one: one.name)


def _pod(body: Json) -> Pod:
    status = body.get("status", {})
    component = body["metadata"]["labels"].get("app.kubernetes.io/component", "")
    conditions = {one["type"]: one["status"] for one in status.get("conditions") or ()}
    container = next((one["name"] for one in body["spec"]["containers"] if one["name"] == component), "")
    own: Json = next((one for one in status.get("containerStatuses") or () if one["name"] == container), {})
    return Pod(
        name=body["metadata"]["name"],
        component=component,
        ready=conditions.get("Ready") == "True",
        phase=status.get("phase", "Unknown"),
        container=container,
        restarts=own.get("restartCount", 0),
        waits="waiting" in own.get("state", {}),
        node=body["spec"].get("nodeName", ""),
    )


@contextmanager
def scheduler(where: Where, key: Key) -> Iterator[str]:
    """The gRPC target of the scheduler that leads, for as long as a `with` lasts. Raises CliError; in place of a
    NoAnswerError of its client, why there was no port-forward: RefusedError where this user may have none."""
    with forwarded(where.core, key.namespace, leading(where, key), SCHEDULER_STATUS) as forward:
        try:
            yield f"unix:{forward.path}"
        except NoAnswerError as error:
            if isinstance(forward.failure, RefusedError):
                raise forward.failure from error
            raise NoAnswerError(str(forward.failure or error)) from error


def leading(where: Where, key: Key) -> str:
    """The pod that holds the pool's Lease; where that may not be read, a scheduler's that is ready. Raises CliError."""
    schedulers = [pod for name in SCHEDULERS for pod in pods(where, key, name)]
    if not schedulers:
        raise NoAnswerError(f"GpuPool {'/'.join(key)} has no pod of a scheduler: kubectl describe gpool says why")
    holder = _holder(where, key)
    leader = next((pod for pod in schedulers if pod.name == holder), None)
    chosen = leader or next((pod for pod in schedulers if pod.ready), schedulers[0])
    if chosen.node in where.lost:
        name = f"{key.namespace}/{chosen.name}"
        raise NoAnswerError(f"pod {name} of the scheduler is on node {chosen.node}, which is not ready")
    return chosen.name


def _holder(where: Where, key: Key) -> str:
    read = client.CoordinationV1Api(where.api).read_namespaced_lease
    try:
        lease = where.json("Lease", read, child(key, SCHEDULERS[0]), key.namespace)
    except CliError:  # a user may see pods and no Leases
        return ""
    return str(lease["spec"].get("holderIdentity") or "")
