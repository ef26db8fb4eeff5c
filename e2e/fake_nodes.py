"""Nodes without kubelets, for questions of scheduling: pods are bound to them, become ready, and go when deleted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from e2e.cluster.control_plane import start_scheduler
from e2e.cluster.layout import Layout
from e2e.cluster.processes import find, stop
from e2e.polling import poll

LABEL = {"aegaeon.example/fake": "yes"}
_EVERY_S = 0.2


@contextmanager
def scheduling(layout: Layout) -> Iterator[None]:
    """With a scheduler of pods: the cluster's own, else one for the time of a `with`."""
    if find(layout, "kube-scheduler"):
        yield
        return
    start_scheduler(layout)
    try:
        yield
    finally:
        if scheduler := find(layout, "kube-scheduler"):
            stop(layout, scheduler)


@contextmanager
def fake_nodes(
    api: client.ApiClient, namespace: str, cpus: dict[str, int], every_s: float = _EVERY_S
) -> Iterator[None]:
    """Nodes by name with so many CPUs. Their pods are those of one namespace, which select LABEL; what they do takes up
    to `every_s`."""
    core = client.CoreV1Api(api)
    for name in cpus:
        metadata = client.V1ObjectMeta(name=name, labels={**LABEL, "kubernetes.io/hostname": name})
        core.create_node(client.V1Node(metadata=metadata))
    ended = threading.Event()
    kubelets = threading.Thread(target=_keep_house, args=(core, namespace, cpus, ended, every_s))
    kubelets.start()
    try:
        poll("pods are let onto every node", lambda: not _tainted(core, cpus), 60)
        yield
    finally:
        ended.set()
        kubelets.join()
        for name in cpus:
            core.delete_node(name)


def _tainted(core: client.CoreV1Api, cpus: dict[str, int]) -> list[str]:
    """A node is, until the node controller has heard that it is ready."""
    nodes: list[Any] = core.list_node().items
    return [one.metadata.name for one in nodes if one.metadata.name in cpus and one.spec.taints]


def _keep_house(
    core: client.CoreV1Api, namespace: str, cpus: dict[str, int], ended: threading.Event, every_s: float
) -> None:
    """What kubelets tell the API server, until the end."""
    while not ended.wait(every_s):
        for name, count in cpus.items():
            core.patch_node_status(name, {"status": _alive(count)})
        pods: list[Any] = core.list_namespaced_pod(namespace).items
        for pod in pods:
            if pod.spec.node_name:
                _keep_pod(core, pod)


def _keep_pod(core: client.CoreV1Api, pod: Any) -> None:
    where = (pod.metadata.name, pod.metadata.namespace)
    try:
        if pod.metadata.deletion_timestamp:
            core.delete_namespaced_pod(*where, grace_period_seconds=0)
        elif pod.status.phase != "Running":
            ready = {"type": "Ready", "status": "True", "lastTransitionTime": _now()}
            core.patch_namespaced_pod_status(*where, {"status": {"phase": "Running", "conditions": [ready]}})
    except ApiException as error:
        if error.status != 404:  # it went meanwhile
            raise


def _alive(cpus: int) -> dict[str, Any]:
    amounts = {"cpu": str(cpus), "memory": f"{4 * cpus}Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Said", "lastHeartbeatTime": _now()}
    return {"capacity": amounts, "allocatable": amounts, "conditions": [ready]}


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
