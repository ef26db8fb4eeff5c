"""Offers GPUs that a node does not have, so that pods are scheduled by them: `... FOLDER RESOURCE COUNT`.

FOLDER is kubelet's /var/lib/kubelet/device-plugins, as the caller sees it. A pod learns which it was given from
NVIDIA_VISIBLE_DEVICES, as from NVIDIA's own plugin; there is nothing behind it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

_ENDPOINT, _KUBELET = "aegaeon-e2e.sock", "kubelet.sock"
messages: Any
services: Any
messages, services = grpc.protos_and_services("e2e/cluster/device_plugin.proto")


class Plugin(services.DevicePluginServicer):  # type: ignore[misc]  # made at run time
    """All devices are healthy for ever."""

    def __init__(self, count: int) -> None:
        self._ids = [f"gpu-{number}" for number in range(count)]

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        """None."""
        return messages.Empty()

    def ListAndWatch(self, request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """The same list until kubelet goes."""
        yield messages.Devices(devices=[messages.Device(id=one, health="Healthy") for one in self._ids])
        gone = threading.Event()
        context.add_callback(gone.set)
        gone.wait()

    def Allocate(self, request: Any, context: Any) -> Any:
        """A name for each."""
        given = [",".join(one.device_ids) for one in request.container_requests]
        responses = [messages.ContainerResponse(envs={"NVIDIA_VISIBLE_DEVICES": ids}) for ids in given]
        return messages.AllocateResponse(container_responses=responses)


def main() -> None:
    """Serve until killed."""
    folder, resource, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    while not (folder / _KUBELET).exists():  # once it is there; when it starts, it removes what others put here
        time.sleep(0.1)  # poll: kubelet does not announce its socket
    server = grpc.server(ThreadPoolExecutor(4))
    services.add_DevicePluginServicer_to_server(Plugin(count), server)
    server.add_insecure_port(f"unix:{folder / _ENDPOINT}")
    server.start()
    options = [("grpc.default_authority", "localhost")]
    with grpc.insecure_channel(f"unix:{folder / _KUBELET}", options=options) as channel:  # noqa: TID251 - a unix socket
        request = messages.RegisterRequest(version="v1beta1", endpoint=_ENDPOINT, resource_name=resource)
        services.RegistrationStub(channel).Register(request, wait_for_ready=True, timeout=60)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
