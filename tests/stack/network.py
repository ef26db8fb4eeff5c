"""A network that can be cut: relays between processes that stop forwarding and close nothing, as a lost node does.

And an API server that knows Leases alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from aiohttp import web

_ACCEPT_TURNS = 10  # of the loop, within which a connection that was just accepted has its task, to be ended with it


class Relay:
    """Connections to one address, forwarded to another one until it is cut. Then both sides get only silence."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        self._open.clear()

    def heal(self) -> None:
        self._open.set()

    async def stop(self) -> None:
        assert self._server
        for listening in self._server.sockets:  # a server that closes while it accepts leaves the connection open
            asyncio.get_running_loop().remove_reader(listening.fileno())
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._tasks.add(task)
        ends = [writer]
        try:
            await self._open.wait()  # who dials across the cut waits
            answers, there = await asyncio.open_connection("127.0.0.1", self._to)
            ends.append(there)
            await asyncio.gather(self._pump(reader, there), self._pump(answers, writer))
        except OSError:
            pass  # no listener: the caller's connection ends, too
        except asyncio.CancelledError:
            pass  # by stop; Python 3.11 would log a cancelled one as an error
        finally:
            for end in ends:
                end.transport.abort()
            self._tasks.discard(task)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        await self._open.wait()  # an end is not heard of either
        sink.close()


class Leases:
    """An API server's Leases, with its optimistic concurrency."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.objects: dict[str, dict[str, Any]] = {}
        self.port = 0
        self._version = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Leases]:
        app = web.Application()
        app.router.add_route("*", "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases", self._create)
        app.router.add_get("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}", self._get)
        app.router.add_put("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}", self._put)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, self.host, 0)
        await site.start()
        self.port = runner.addresses[0][1]
        try:
            yield self
        finally:
            await runner.cleanup()

    async def _get(self, request: web.Request) -> web.Response:
        found = self.objects.get(request.match_info["name"])
        return web.json_response(found) if found else _refused(404, "not found")

    async def _create(self, request: web.Request) -> web.Response:
        lease = json.loads(await request.text())
        if lease["metadata"]["name"] in self.objects:
            return _refused(409, "it is there already")
        return self._kept(lease)

    async def _put(self, request: web.Request) -> web.Response:
        lease = json.loads(await request.text())
        found = self.objects[request.match_info["name"]]
        if lease["metadata"]["resourceVersion"] != found["metadata"]["resourceVersion"]:
            return _refused(409, "the object has been modified")
        return self._kept(lease)

    def _kept(self, lease: dict[str, Any]) -> web.Response:
        self._version += 1
        lease["metadata"]["resourceVersion"] = str(self._version)
        self.objects[lease["metadata"]["name"]] = lease
        return web.json_response(lease)


def _refused(status: int, message: str) -> web.Response:
    return web.json_response({"kind": "Status", "message": message}, status=status)


def kubeconfig(file: Path, port: int, host: str = "127.0.0.1") -> Path:
    """That leads to an API server on this machine."""
    cluster = {"name": "c", "cluster": {"server": f"http://{host}:{port}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "n"}}
    user = {"name": "u", "user": {"token": "unused"}}
    content = {"current-context": "c", "clusters": [cluster], "contexts": [context], "users": [user]}
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **content}))
    return file


@dataclass(frozen=True, slots=True)
class OtherNode:
    """A network namespace with an address, and the link to it, whose near end has an address, too."""

    name: str
    here: str
    there: str

    @property
    def inside(self) -> tuple[str, ...]:
        """What a command in it begins with."""
        return ("nsenter", f"--net=/var/run/netns/{self.name}", "--")

    def link(self, state: Literal["up", "down"]) -> None:
        ip("link", "set", self.name, state)


@contextmanager
def other_node() -> Iterator[OtherNode]:
    """For root, where there is `ip`; PermissionError for others."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nsenter") is None:
        raise PermissionError("network namespaces need root, ip and nsenter")
    number = os.getpid() % 60 * 4
    node = OtherNode(f"ae-{os.getpid()}", f"10.231.254.{number + 1}", f"10.231.254.{number + 2}")
    ip("netns", "add", node.name)
    try:
        ip("link", "add", node.name, "type", "veth", "peer", "name", "eth0", "netns", node.name)
        ip("address", "add", f"{node.here}/30", "dev", node.name)
        ip("-netns", node.name, "address", "add", f"{node.there}/30", "dev", "eth0")
        for where in (("link", "set", node.name), *(("-netns", node.name, "link", "set", of) for of in ("lo", "eth0"))):
            ip(*where, "up")
        yield node
    finally:
        ip("netns", "delete", node.name)


def ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True)
