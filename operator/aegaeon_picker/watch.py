"""The endpoints of an InferencePool: its selector, its ports, and the pods that are ready."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any

from kubernetes import client, config
from kubernetes.config import ConfigException
from kubernetes.watch import Watch
from urllib3.exceptions import HTTPError

from aegaeon_picker.errors import PickerError
from aegaeon_picker.fleet import Endpoint

log = logging.getLogger(__name__)

GROUP, VERSION, PLURAL = "inference.networking.k8s.io", "v1", "inferencepools"
_WATCH_S = 60  # a watch is renewed this often, and the pool read again: a change that was missed lasts no longer
_RETRY_S = 1.0


def ready_endpoints(pods: Iterable[Any], ports: Iterable[int]) -> list[Endpoint]:
    """Every port of every pod that is ready and not on its way out."""
    return [Endpoint(pod.status.pod_ip, port) for pod in pods if _takes_requests(pod) for port in ports]


def _takes_requests(pod: Any) -> bool:
    conditions = pod.status.conditions or ()
    ready = any(each.type == "Ready" and each.status == "True" for each in conditions)
    return ready and pod.status.pod_ip is not None and pod.metadata.deletion_timestamp is None


class PoolWatch:
    """A thread that follows a pool's pods and tells `changed` their endpoints, until `stop`.

    While the API server is away the last list stays: requests go on.
    """

    def __init__(self, namespace: str, pool: str, changed: Callable[[list[Endpoint]], None]) -> None:
        self._namespace, self._pool, self._changed = namespace, pool, changed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pool-watch", daemon=True)
        self._api = _api()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; a watch that waits for news is abandoned (the thread is a daemon)."""
        self._stopping.set()

    def _run(self) -> None:
        told = ""
        while not self._stopping.is_set():
            try:
                self._follow()
                told = ""
            except (client.ApiException, HTTPError, PickerError) as error:
                text = f"{type(error).__name__}: {error}".splitlines()[0]
                if text != told:
                    log.warning("the pods of pool %s/%s cannot be read: %s", self._namespace, self._pool, text)
                told = text
                self._stopping.wait(_RETRY_S)

    def _follow(self) -> None:
        """One list and one watch. Raises ApiException, HTTPError, PickerError."""
        selector, ports = self._read_pool()
        core: Any = client.CoreV1Api(self._api)
        listed = core.list_namespaced_pod(self._namespace, label_selector=selector)
        pods = {pod.metadata.name: pod for pod in listed.items}
        self._changed(ready_endpoints(pods.values(), ports))
        watch: Any = Watch
        stream = watch().stream(
            core.list_namespaced_pod,
            self._namespace,
            label_selector=selector,
            resource_version=listed.metadata.resource_version,
            timeout_seconds=_WATCH_S,
        )
        for event in stream:
            pod = event["object"]
            if event["type"] == "DELETED":
                pods.pop(pod.metadata.name, None)
            else:
                pods[pod.metadata.name] = pod
            self._changed(ready_endpoints(pods.values(), ports))
            if self._stopping.is_set():
                return

    def _read_pool(self) -> tuple[str, list[int]]:
        objects: Any = client.CustomObjectsApi(self._api)
        pool = objects.get_namespaced_custom_object(GROUP, VERSION, self._namespace, PLURAL, self._pool)
        spec = pool["spec"]
        labels = spec.get("selector", {}).get("matchLabels", {})
        ports = [port["number"] for port in spec.get("targetPorts", ())]
        if not labels or not ports:
            raise PickerError("the InferencePool has no selector.matchLabels or no targetPorts; give it both")
        return ",".join(f"{key}={value}" for key, value in sorted(labels.items())), ports


def _api() -> client.ApiClient:
    """Raises PickerError."""
    try:
        config.load_config()  # type: ignore[no-untyped-call]  # the client has types in parts
    except ConfigException as error:
        raise PickerError(f"no cluster to ask ({error}); run in a pod, set KUBECONFIG, or give --endpoints") from error
    return client.ApiClient()
