"""A pool of a cluster, looked at and disturbed with kubectl as a person would."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.cluster.layout import url
from e2e.kubectl import kubectl
from e2e.manifests import POOL
from e2e.polling import poll

PORT = 8000
_ALL = "gpupools,modelpools,pods"


@dataclass(frozen=True, slots=True)
class Pod:
    """What tests look at."""

    name: str
    uid: str
    node: str
    ready: bool
    restarts: int
    ip: str

    @property
    def url(self) -> str:
        """Of a gateway."""
        return url(self.ip, PORT)


@dataclass(frozen=True, slots=True)
class PodsOfPool:
    """The pods and objects of one GpuPool."""

    kubeconfig: Path
    namespace: str
    name: str

    @property
    def url(self) -> str:
        """Of the gateways' Service, which is routed to from this machine."""
        service = json.loads(self.kubectl("get", "service", f"{self.name}-gateway", "-o", "json"))
        return url(service["spec"]["clusterIP"], PORT)

    def kubectl(self, *words: str, stdin: str | None = None) -> str:
        """In the pool's namespace."""
        return kubectl(self.kubeconfig, "-n", self.namespace, *words, stdin=stdin)

    def apply(self, *manifests: dict[str, Any]) -> None:
        """As `kubectl apply -f -`."""
        self.kubectl("apply", "-f", "-", stdin="\n---\n".join(json.dumps(one) for one in manifests))

    def pods(self, component: str | None = None) -> list[Pod]:
        """Those that are not on their way out."""
        labels = f"app.kubernetes.io/name=aegaeon,app.kubernetes.io/instance={self.name}"
        labels += f",app.kubernetes.io/component={component}" if component else ""
        found = json.loads(self.kubectl("get", "pods", "-l", labels, "-o", "json"))["items"]
        return [_pod(one) for one in found if "deletionTimestamp" not in one["metadata"]]

    def kill(self, pod: Pod) -> None:
        """As a node that goes down would: at once."""
        self.kubectl("delete", "pod", pod.name, "--grace-period=0", "--force", "--wait=true")

    def wait_until_all_ready(self, component: str, count: int, within_s: float = 90.0) -> None:
        """Until `count` pods are there and ready."""

        def ready() -> bool:
            there = self.pods(component)
            return len(there) == count and all(pod.ready for pod in there)

        self.wait_until(f"{count} pods of {component} are ready", ready, within_s)

    def wait_until_ready(self, within_s: float = 180.0) -> None:
        """Of the specs as they are."""
        self.kubectl("wait", "--for=condition=Ready", "gpupool,modelpool", "--all", f"--timeout={within_s:g}s")

    def patch(self, spec: dict[str, Any]) -> None:
        """Change the GpuPool's spec; None takes a field away."""
        self.kubectl("patch", "gpupool", self.name, "--type=merge", "-p", json.dumps({"spec": spec}))

    def wait_until(self, what: str, true: Callable[[], bool], within_s: float = 60.0) -> None:
        """Poll. AssertionError with `what` and the pool as it is."""
        poll(what, true, within_s, lambda: self.kubectl("get", "gpool,mpool,pods"))


@contextmanager
def a_pool(kubeconfig: Path, namespace: str, gpu_pool: dict[str, Any]) -> Iterator[PodsOfPool]:
    """One in a namespace of its own, gone at the end."""
    kubectl(kubeconfig, "create", "namespace", namespace)
    try:
        made = PodsOfPool(kubeconfig, namespace, POOL)
        made.apply(gpu_pool)
        yield made
    finally:
        kubectl(kubeconfig, "delete", "namespace", namespace, "--timeout=180s")


def _pod(found: dict[str, Any]) -> Pod:
    status = found["status"]
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status.get("conditions", ()))
    restarts = sum(one["restartCount"] for one in status.get("containerStatuses", ()))
    meta = found["metadata"]
    return Pod(meta["name"], meta["uid"], found["spec"].get("nodeName", ""), ready, restarts, status.get("podIP", ""))
