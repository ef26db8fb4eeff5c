"""A pool of a cluster: its pods, its leading scheduler, and that scheduler's address."""

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
    """A pod of a pool; `container` is ours, as a pod template may add others; `restarts` are those of that container,
    and `waits` says that it is about to start (again)."""

    name: str
    component: str
    ready: bool
    phase: str
    container: str
    restarts: int
    waits: bool = False
    node: str = ""


def pools(where: Where) -> list[Key]:
    """The GpuPools of the namespace. Raises CliError."""
    metadata = (entry["metadata"] for entry in where.pools("gpupools"))
    return sorted(Key(entry["namespace"], entry["name"]) for entry in metadata)


def the_pool(where: Where, name: str | None) -> Key:
    """The GpuPool of that name, or the only GpuPool. Raises CliError."""
    known = pools(where)
    fitting = [key for key in known if name in (None, key.name)]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join("/".join(key) for key in fitting or known)
    if not fitting:
        raise CliError(f"{where.place} has no GpuPool{f' {name}; it has {names}' if name and known else ''}")
    raise CliError(f"{where.place} has several GpuPools: {names}; name the pool, and its namespace with -n")


def pods(where: Where, key: Key, component: str | None = None) -> list[Pod]:
    """The pods of a pool, or of one of its components. Raises CliError."""
    labels = ",".join(f"{name}={value}" for name, value in selector(key, component).items())
    return sorted((_pod(pod) for pod in where.pods(key.namespace, labels)), key=lambda pod: pod.name)


def _pod(body: Json) -> Pod:
    status = body.get("status", {})
    component = body["metadata"]["labels"].get("app.kubernetes.io/component", "")
    conditions = {entry["type"]: entry["status"] for entry in status.get("conditions") or ()}
    container = next((entry["name"] for entry in body["spec"]["containers"] if entry["name"] == component), "")
    own: Json = next((entry for entry in status.get("containerStatuses") or () if entry["name"] == container), {})
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
    """The gRPC target of the leading scheduler, for the length of a `with`. Raises CliError. When the port-forward
    failed, its error replaces a NoAnswerError: RefusedError without permission."""
    with forwarded(where.core, key.namespace, leading(where, key), SCHEDULER_STATUS) as forward:
        try:
            yield f"unix:{forward.path}"
        except NoAnswerError as error:
            if isinstance(forward.failure, RefusedError):
                raise forward.failure from error
            raise NoAnswerError(str(forward.failure or error)) from error


def leading(where: Where, key: Key) -> str:
    """The pod that holds the pool's Lease; when that is not readable, a ready pod of a scheduler. Raises CliError."""
    schedulers = [pod for name in SCHEDULERS for pod in pods(where, key, name)]
    if not schedulers:
        raise NoAnswerError(f"GpuPool {'/'.join(key)} has no scheduler pod; `kubectl describe gpool` shows why")
    holder = _holder(where, key)
    leader = next((pod for pod in schedulers if pod.name == holder), None)
    chosen = leader or next((pod for pod in schedulers if pod.ready), schedulers[0])
    if chosen.node in where.lost:
        name = f"{key.namespace}/{chosen.name}"
        raise NoAnswerError(f"scheduler pod {name} is on node {chosen.node}, which is not ready")
    return chosen.name


def _holder(where: Where, key: Key) -> str:
    read = client.CoordinationV1Api(where.api).read_namespaced_lease
    try:
        lease = where.json("Lease", read, child(key, SCHEDULERS[0]), key.namespace)
    except CliError:  # a user may have permission for pods but not for Leases
        return ""
    return str(lease["spec"].get("holderIdentity") or "")
