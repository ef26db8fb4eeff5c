"""The load balancer that Gateways expect of a cluster: it gives Services their own cluster address."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

from kubernetes import client, config

_POLL_S = 0.3


@contextmanager
def load_balancer(kubeconfig: Path, namespaces: tuple[str, ...]) -> Iterator[None]:
    """For Services of type LoadBalancer in these namespaces, for the time of a `with`."""
    stop = Event()
    with config.new_client_from_config(str(kubeconfig)) as api:
        thread = Thread(target=_serve, args=(client.CoreV1Api(api), namespaces, stop), name="load-balancer")
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()


def _serve(core: Any, namespaces: tuple[str, ...], stop: Event) -> None:
    while not stop.wait(_POLL_S):
        for namespace in namespaces:
            for service in core.list_namespaced_service(namespace).items:
                if service.spec.type == "LoadBalancer" and not service.status.load_balancer.ingress:
                    core.patch_namespaced_service_status(service.metadata.name, namespace, _status(service))


def _status(service: Any) -> dict[str, Any]:
    """`Proxy`: kube-proxy need do nothing for this address, which it knows already."""
    return {"status": {"loadBalancer": {"ingress": [{"ip": service.spec.cluster_ip, "ipMode": "Proxy"}]}}}
