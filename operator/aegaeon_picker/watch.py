"""The endpoints of an InferencePool, from its selector, its ports and its ready pods."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from aegaeon_kube.errors import KubeError
from aegaeon_kube.server import ApiServer
from aegaeon_picker.errors import PickerError
from aegaeon_picker.fleet import Endpoint

log = logging.getLogger(__name__)

Json = dict[str, Any]
Changed = Callable[[list[Endpoint]], Awaitable[None]]
POOLS = "/apis/inference.networking.k8s.io/v1/namespaces/{namespace}/inferencepools/{pool}"
PODS = "/api/v1/namespaces/{namespace}/pods"
_WATCH_S = 60  # period of a new watch and a new read of the pool, which bounds the effect of a missed change
_RETRY_S = 1.0


def ready_endpoints(pods: Iterable[Json], ports: Iterable[int]) -> list[Endpoint]:
    """Return every port of every pod that is ready and not terminating."""
    numbers = list(ports)
    return [Endpoint(pod["status"]["podIP"], port) for pod in pods if _takes_requests(pod) for port in numbers]


def _takes_requests(pod: Json) -> bool:
    status = pod.get("status", {})
    ready = any(entry["type"] == "Ready" and entry["status"] == "True" for entry in status.get("conditions") or ())
    return ready and bool(status.get("podIP")) and "deletionTimestamp" not in pod["metadata"]


async def follow(api: ApiServer, namespace: str, pool: str, changed: Changed) -> None:
    """Call `changed` with the endpoints whenever a pod of the pool changes, until cancelled.

    While the API server is unavailable, the last list stays in use.
    """
    logged = ""
    while True:
        try:
            await _follow_once(api, namespace, pool, changed)
            logged = ""
        except (KubeError, PickerError) as error:
            if str(error) != logged:
                log.warning("the pods of InferencePool %s/%s cannot be read: %s", namespace, pool, error)
            logged = str(error)
            await asyncio.sleep(_RETRY_S)


async def _follow_once(api: ApiServer, namespace: str, pool: str, changed: Changed) -> None:
    """Run a list and a watch."""
    labels, ports = _read_pool(await api.call("GET", POOLS.format(namespace=namespace, pool=pool)))
    path = PODS.format(namespace=namespace)
    listed = await api.call("GET", path, {"labelSelector": labels})
    pods = {pod["metadata"]["name"]: pod for pod in listed["items"]}
    await changed(ready_endpoints(pods.values(), ports))
    async for event in api.watch(path, labels, listed["metadata"]["resourceVersion"], _WATCH_S):
        pod = event["object"]
        if event["type"] == "DELETED":
            pods.pop(pod["metadata"]["name"], None)
        else:
            pods[pod["metadata"]["name"]] = pod
        await changed(ready_endpoints(pods.values(), ports))


def _read_pool(pool: Json) -> tuple[str, list[int]]:
    """Return the selector and the ports of an InferencePool. Raises PickerError."""
    spec = pool["spec"]
    labels = spec.get("selector", {}).get("matchLabels", {})
    ports = [port["number"] for port in spec.get("targetPorts", ())]
    if not labels or not ports:
        raise PickerError("selector.matchLabels and targetPorts must not be empty; set both")
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())), ports
