"""The endpoints of an InferencePool: its selector, its ports, and the pods that are ready."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, cast

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.watch import Watch

from aegaeon_picker.errors import PickerError
from aegaeon_picker.fleet import Endpoint

log = logging.getLogger(__name__)

GROUP, VERSION, PLURAL = "inference.networking.k8s.io", "v1", "inferencepools"
Changed = Callable[[list[Endpoint]], Awaitable[None]]
_WATCH_S = 60  # a watch is renewed this often, and the pool read again: a change that was missed lasts no longer
_RETRY_S = 1.0
_TROUBLE = (client.ApiException, aiohttp.ClientError, TimeoutError, PickerError)


def ready_endpoints(pods: Iterable[Any], ports: Iterable[int]) -> list[Endpoint]:
    """Every port of every pod that is ready and not on its way out."""
    numbers = list(ports)
    return [Endpoint(pod.status.pod_ip, port) for pod in pods if _takes_requests(pod) for port in numbers]


def _takes_requests(pod: Any) -> bool:
    conditions = pod.status.conditions or ()
    ready = any(each.type == "Ready" and each.status == "True" for each in conditions)
    return ready and pod.status.pod_ip is not None and pod.metadata.deletion_timestamp is None


async def connect() -> client.ApiClient:
    """To the cluster of KUBECONFIG, or the one that this pod is in. Raises PickerError."""
    file, loaders = os.environ.get("KUBECONFIG"), cast(Any, config)
    try:
        if file:
            await loaders.load_kube_config(config_file=file)
        else:
            loaders.load_incluster_config()
    except config.ConfigException as error:
        raise PickerError(f"no cluster to ask ({error}); run in a pod, set KUBECONFIG, or give --endpoints") from error
    return client.ApiClient()


async def follow(api: client.ApiClient, namespace: str, pool: str, changed: Changed) -> None:
    """Tell `changed` the endpoints whenever a pod of the pool changes, until cancelled.

    While the API server is away nothing is told: the last list stays, and requests go on.
    """
    told = ""
    while True:
        try:
            await _follow_once(api, namespace, pool, changed)
            told = ""
        except _TROUBLE as error:
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            if text != told:
                log.warning("the pods of InferencePool %s/%s cannot be read: %s", namespace, pool, text)
            told = text
            await asyncio.sleep(_RETRY_S)


async def _follow_once(api: client.ApiClient, namespace: str, pool: str, changed: Changed) -> None:
    """One list and one watch."""
    selector, ports = await _read_pool(api, namespace, pool)
    core: Any = client.CoreV1Api(api)
    listed = await core.list_namespaced_pod(namespace, label_selector=selector)
    pods = {pod.metadata.name: pod for pod in listed.items}
    await changed(ready_endpoints(pods.values(), ports))
    events = cast(Any, Watch)().stream(
        core.list_namespaced_pod,
        namespace,
        label_selector=selector,
        resource_version=listed.metadata.resource_version,
        timeout_seconds=_WATCH_S,
    )
    async for event in events:
        pod = event["object"]
        if event["type"] == "DELETED":
            pods.pop(pod.metadata.name, None)
        else:
            pods[pod.metadata.name] = pod
        await changed(ready_endpoints(pods.values(), ports))


async def _read_pool(api: client.ApiClient, namespace: str, name: str) -> tuple[str, list[int]]:
    objects: Any = client.CustomObjectsApi(api)
    pool = await objects.get_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL, name)
    spec = pool["spec"]
    labels = spec.get("selector", {}).get("matchLabels", {})
    ports = [port["number"] for port in spec.get("targetPorts", ())]
    if not labels or not ports:
        raise PickerError("it has no selector.matchLabels or no targetPorts; give it both")
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())), ports
