"""The two calls of a kubelet that `kubectl logs` and port-forwards end in, for pods whose processes and logs are this
machine's own: what is before it, from the client to the API server's proxy, is real."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from aegaeon_operator.pki import issue, make_authority
from aegaeon_proto.roles import Role
from e2e.envoy import free_ports
from e2e.fake_nodes import fake_nodes
from e2e.kubectl import REPOSITORY
from e2e.polling import poll

_PROTOCOL = "v4.channel.k8s.io"
_EVERY_S = 0.1
_CHUNK = 64 << 10


@dataclass(slots=True)
class Machine:
    """What pods have here. `ports`: by the beginning of a pod's name and its port, the port of this machine; `logs`: a
    folder with a file for each pod, its lines with their time in front."""

    logs: Path
    ports: dict[tuple[str, int], int] = field(default_factory=dict)

    def port_of(self, pod: str, port: int) -> int | None:
        """None: no process listens on it."""
        return next((to for (name, at), to in self.ports.items() if pod.startswith(name) and at == port), None)


@contextmanager
def kubelet(api: client.ApiClient, address: str, namespace: str, machine: Machine) -> Iterator[None]:
    """A node on which all pods of a namespace run, at once."""
    (port,) = free_ports(1)
    name = f"node-of-{namespace}"
    with fake_nodes(api, namespace, {name: 64}), _serving(address, port, machine):
        where = {"addresses": [{"type": "InternalIP", "address": address}]}
        endpoint = {"daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        client.CoreV1Api(api).patch_node_status(name, {"status": where | endpoint})
        with _binding(client.CoreV1Api(api), namespace, name):
            yield


@contextmanager
def _binding(core: client.CoreV1Api, namespace: str, node: str) -> Iterator[None]:
    """A scheduler for one node."""
    ended = threading.Event()

    def bind() -> None:
        while not ended.wait(_EVERY_S):
            pods: list[Any] = core.list_namespaced_pod(namespace).items
            for pod in pods:
                if not pod.spec.node_name and not pod.metadata.deletion_timestamp:
                    _bind(core, namespace, pod.metadata.name, node)

    thread = threading.Thread(target=bind)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bind(core: client.CoreV1Api, namespace: str, pod: str, node: str) -> None:
    target = client.V1ObjectReference(kind="Node", name=node)
    body = client.V1Binding(metadata=client.V1ObjectMeta(name=pod), target=target)
    with contextlib.suppress(ApiException):  # it went meanwhile
        core.create_namespaced_binding(namespace, body, _preload_content=False)


@contextmanager
def _serving(address: str, port: int, machine: Machine) -> Iterator[None]:
    """A process of its own, whose connections end with it."""
    ports = [[name, at, to] for (name, at), to in machine.ports.items()]
    command = [sys.executable, "-m", "e2e.kubelet", address, str(port), str(machine.logs), json.dumps(ports)]
    with subprocess.Popen(command, cwd=REPOSITORY) as process:
        try:
            poll("the kubelet listens", lambda: _listens(address, port), 30)
            yield
        finally:
            process.kill()


def _listens(address: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((address, port), 1):
        return True
    return False


def main() -> None:
    """The process."""
    address, port, logs, ports = sys.argv[1:]
    machine = Machine(Path(logs), {(name, at): to for name, at, to in json.loads(ports)})
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", partial(_log, machine))
    app.router.add_get("/portForward/{namespace}/{pod}", partial(_forward, machine))
    web.run_app(app, host=address, port=int(port), ssl_context=_context(machine.logs), print=None, access_log=None)


def _context(folder: Path) -> ssl.SSLContext:
    """API servers check a kubelet's certificate only where they are given its authority."""
    pair = issue(make_authority("kubelet", datetime.now(UTC)), Role.ENGINE, datetime.now(UTC))
    file = folder / ".kubelet.pem"
    file.write_bytes(pair.key + pair.certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    return context


async def _log(machine: Machine, request: web.Request) -> web.StreamResponse:
    """As kubelets answer: with `follow` until the client goes."""
    file = machine.logs / request.match_info["pod"]
    response = web.StreamResponse()
    await response.prepare(request)
    given = _content(file)
    lines = given.splitlines(keepends=True)
    tail = int(request.query.get("tailLines", len(lines)))
    await response.write(b"".join(lines[len(lines) - tail :]))
    while request.query.get("follow") == "true":
        await asyncio.sleep(_EVERY_S)  # a file is watched
        sent, given = len(given), _content(file)
        await response.write(given[sent:])
    return response


def _content(file: Path) -> bytes:
    """Nothing of a pod that has said nothing."""
    return file.read_bytes() if file.exists() else b""


async def _forward(machine: Machine, request: web.Request) -> web.StreamResponse:
    """Two channels for each port, data and errors; the first frame of each says which port it is."""
    tunnel = web.WebSocketResponse(protocols=[_PROTOCOL])
    await tunnel.prepare(request)
    port = int(request.query["port"])
    for channel in (0, 1):
        await tunnel.send_bytes(bytes([channel]) + struct.pack("<H", port))
    to = machine.port_of(request.match_info["pod"], port)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", to or 1)
    except OSError as error:
        await tunnel.send_bytes(b"\x01" + str(error).encode())
        return tunnel
    back = asyncio.create_task(_back(reader, tunnel))
    async for message in tunnel:
        if message.type is WSMsgType.BINARY and message.data[0] == 0:
            writer.write(message.data[1:])
    writer.close()
    back.cancel()
    return tunnel


async def _back(reader: asyncio.StreamReader, tunnel: web.WebSocketResponse) -> None:
    while data := await reader.read(_CHUNK):
        await tunnel.send_bytes(b"\x00" + data)
    await tunnel.close()


if __name__ == "__main__":
    main()
