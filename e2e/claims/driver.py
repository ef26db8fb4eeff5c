"""A driver of dynamic resource allocation on one node: kubelet has it prepare a claim before it starts the pod's
containers, and undo that once they have ended. There is nothing behind the devices."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from kubernetes import client

from e2e.cluster.layout import Node
from e2e.polling import poll

DRIVER = "gpu.aegaeon.example"
GROUP, VERSION = "resource.k8s.io", "v1"
# kubelet's folders, of which each node has its own.
_PLUGINS = "/var/lib/kubelet/plugins"
_REGISTRY = "/var/lib/kubelet/plugins_registry"
_SOCKET = "dra.sock"
messages: Any
services: Any
registration_messages: Any
registration_services: Any
messages, services = grpc.protos_and_services("e2e/claims/dra.proto")
registration_messages, registration_services = grpc.protos_and_services("e2e/claims/registration.proto")


class Registration(registration_services.RegistrationServicer):  # type: ignore[misc]  # made at run time
    """Tells kubelet where the driver is; `done` once kubelet has taken it."""

    def __init__(self) -> None:
        self.done = threading.Event()

    def GetInfo(self, request: Any, context: Any) -> Any:
        """What kubelet asks first."""
        endpoint = f"{_PLUGINS}/{DRIVER}/{_SOCKET}"
        return registration_messages.PluginInfo(
            type="DRAPlugin", name=DRIVER, endpoint=endpoint, supported_versions=["v1.DRAPlugin"]
        )

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        """What kubelet says then."""
        if request.plugin_registered:
            self.done.set()
        return registration_messages.RegistrationStatusResponse()


class Driver(services.DRAPluginServicer):  # type: ignore[misc]  # made at run time
    """Of the devices of one node. `refusal`: why it prepares nothing at present; `prepared`: claims by uid, with the
    names of the devices that each has."""

    def __init__(self, api: client.ApiClient, node: str) -> None:
        self._claims: Any = client.CustomObjectsApi(api)
        self._node = node
        self.refusal = ""
        self.prepared: dict[str, str] = {}

    def NodePrepareResources(self, request: Any, context: Any) -> Any:
        """Of each claim, the devices of this driver that the scheduler allocated."""
        answers = {claim.uid: self._prepare(claim) for claim in request.claims}
        return messages.NodePrepareResourcesResponse(claims=answers)

    def NodeUnprepareResources(self, request: Any, context: Any) -> Any:
        """Also of claims that were never prepared, as kubelet may ask."""
        for claim in request.claims:
            self.prepared.pop(claim.uid, None)
        answers = {claim.uid: messages.NodeUnprepareResourceResponse() for claim in request.claims}
        return messages.NodeUnprepareResourcesResponse(claims=answers)

    def _prepare(self, claim: Any) -> Any:
        if self.refusal:
            return messages.NodePrepareResourceResponse(error=self.refusal)
        whose = (GROUP, VERSION, claim.namespace, "resourceclaims", claim.name)
        found = self._claims.get_namespaced_custom_object(*whose)
        results = found["status"]["allocation"]["devices"]["results"]
        given = [one for one in results if (one["driver"], one["pool"]) == (DRIVER, self._node)]
        self.prepared[claim.uid] = ",".join(one["device"] for one in given)
        devices = [
            messages.Device(request_names=[one["request"]], pool_name=one["pool"], device_name=one["device"])
            for one in given
        ]
        return messages.NodePrepareResourceResponse(devices=devices)


@contextmanager
def driving(api: client.ApiClient, node: Node) -> Iterator[Driver]:
    """Known to a node's kubelet for the time of a `with`."""
    driver, registration = Driver(api, node.name), Registration()
    own = node.on_disk(f"{_PLUGINS}/{DRIVER}")
    own.mkdir(parents=True, exist_ok=True)
    sockets = (own / _SOCKET, node.on_disk(_REGISTRY) / f"{DRIVER}.sock")
    server = grpc.server(ThreadPoolExecutor(4))
    services.add_DRAPluginServicer_to_server(driver, server)
    registration_services.add_RegistrationServicer_to_server(registration, server)
    for socket in sockets:
        server.add_insecure_port(f"unix:{socket}")
    server.start()
    try:
        poll("kubelet knows the driver", registration.done.is_set, 60)
        yield driver
    finally:
        _remove(*sockets)  # kubelet forgets a driver whose socket is gone
        server.stop(5).wait()


def _remove(*sockets: Path) -> None:
    for socket in sockets:
        socket.unlink(missing_ok=True)
