"""The processes of a pool as pods run them: TCP with mutual TLS, configuration files as of a Secret, no pod runner."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
import openai
from google.protobuf.json_format import MessageToDict

from aegaeon_cli.demo import clients
from aegaeon_cli.demo.stack import free_port
from aegaeon_operator.pki import Pair, issue, make_authority
from aegaeon_proto.channels import open_channel
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import admin_pb2, admin_pb2_grpc, gateway_pb2, model_pb2

START_S = 150  # on a machine that is busy with much else; where it is not, seconds
KEY = "sk-red"
LOOPBACK = "127.0.0.1"
_FILES = ("ca.crt", "tls.crt", "tls.key")
MEMORY = {"device_bytes": 8 << 20, "slab_bytes": 64 << 10, "host_kv_bytes": 32 << 20, "host_cache_bytes": 64 << 20}


def spec(name: str, directory: Path, **fields: Any) -> model_pb2.ModelSpec:
    source = model_pb2.ModelSource(directory=str(directory))
    return model_pb2.ModelSpec(name=name, source=source, **({"ttft_s": 5, "tbt_s": 0.2} | fields))


def tenants(*models: str) -> gateway_pb2.Tenants:
    """The client of the tests, with these models."""
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    return gateway_pb2.Tenants(tenants=[gateway_pb2.Tenant(name="red", models=models, key_sha256=[digest])])


class Pods:
    """A scheduler, a gateway and engines, started one by one. Each node has a folder of segments of its own."""

    def __init__(
        self, models: dict[str, Path], base: Path, memory: dict[str, int], engine: str = "aegaeon_sidecar"
    ) -> None:
        self.base = base
        self.tls = base / "tls"
        self.authority = make_authority("test", datetime.now(UTC))
        self.write_certificates(self.authority)
        self.ports = {name: free_port() for name in ("scheduler", "admin", "pages", "gateway", "sink")}
        self.engine_pages: dict[str, int] = {}
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self._models = models
        self._memory = memory
        self._engine = engine  # the module that engines run
        self.loopback = LOOPBACK
        self.hold_s = 30.0  # a request waits for an engine, at most
        # Address of a process and what its command begins with, by its name: in another network, if it is here.
        self.nodes: dict[str, tuple[str, tuple[str, ...]]] = {}
        # What else its configuration and its environment have, by the name of an engine.
        self.settings: Callable[[str], dict[str, Any]] = lambda _: {}
        self.environment: Callable[[str], dict[str, str]] = lambda _: {}
        # Where a process finds the schedulers, by its name.
        self.schedulers: Callable[[str], list[str]] = lambda _: [self.scheduler]

    @property
    def scheduler(self) -> str:
        return f"{self.host('scheduler')}:{self.ports['scheduler']}"

    @property
    def url(self) -> str:
        return f"http://{self.host('gateway')}:{self.ports['gateway']}"

    def host(self, name: str) -> str:
        return self.nodes.get(name, (self.loopback, ()))[0]

    def write_certificates(self, authority: Pair, folder: Path | None = None) -> Path:
        """Of every role: into the folders that all processes of a role share, or into folders in another one."""
        folder = folder or self.tls
        for role in Role:
            pair, files = issue(authority, role, datetime.now(UTC)), folder / role
            files.mkdir(parents=True, exist_ok=True)
            for name, content in zip(_FILES, (authority.certificate, pair.certificate, pair.key), strict=True):
                (files / name).write_bytes(content)
        return folder

    async def start_scheduler(self, name: str = "scheduler", cluster: Path | None = None) -> None:
        """`cluster`: a KUBECONFIG, where a Lease says who leads; one that stands by has ports `NAME-...`."""
        part = "" if name == "scheduler" else f"{name}-"
        models = [
            {"name": name, "source": {"directory": str(path)}, "ttft_s": 5, "tbt_s": 0.2}
            for name, path in self._models.items()
        ]
        config = {
            "listen": f"{self.host(name)}:{self.ports[name]}",
            "admin_listen": f"{self.host(name)}:{self.ports[part + 'admin']}",
            "tls": str(self.tls / Role.SCHEDULER),
            "policy": {"name": "slack"},
            "metrics_listen": f"{self.host(name)}:{self.ports[part + 'pages']}",
            "hold_s": self.hold_s,
            "models": models,
            "lease": {"namespace": "n", "name": "pool", "memory": str(self.base / f"{name}.term")} if cluster else None,
            "tenants": MessageToDict(tenants(*self._models), preserving_proto_field_name=True),
        }
        environment = {"KUBECONFIG": str(cluster)} if cluster else {}
        await self._run(name, "aegaeon_scheduler", config, "--holder", name, environment=environment)
        await self._until(name, self.ports[part + "pages"], "readyz")

    async def start_engine(self, name: str, tls: Path | None = None, node: str = "n") -> None:
        """Until it is ready; `tls`: certificates of its own."""
        await self.begin_engine(name, tls, node)
        await self._until(name, self.engine_pages[name], "readyz")

    async def begin_engine(self, name: str, tls: Path | None = None, node: str = "n") -> None:
        port = self.engine_pages[name] = free_port()
        config = {
            "role": "unified",
            **self._targets(name),
            "tls": str((tls or self.tls) / Role.ENGINE),
            "memory": self._memory,
            "segments": str(self.base / f"segments-{node}"),
            "metrics_listen": f"{self.host(name)}:{port}",
            "drain_s": 60,
            **self.settings(name),
        }
        arguments = ("--instance", name, "--node", node)
        await self._run(name, self._engine, config, *arguments, environment=self.environment(name))

    def _targets(self, name: str) -> dict[str, Any]:
        first, *others = self.schedulers(name)
        return {"scheduler": first, "standbys": others}

    @property
    def pages(self) -> str:
        """Where the scheduler's metrics are."""
        return f"{self.host('scheduler')}:{self.ports['pages']}"

    async def start_gateway(self) -> None:
        config = {
            "listen": f"{self.host('gateway')}:{self.ports['gateway']}",
            **self._targets("gateway"),
            "tls": str(self.tls / Role.GATEWAY),
            "tenants_by_scheduler": True,
            "hold_s": self.hold_s,
        }
        sink = f"{self.host('gateway')}:{self.ports['sink']}"
        await self._run("gateway", "aegaeon_gateway", config, "--name", "gateway", "--sink", sink)
        await self._until("gateway", self.ports["gateway"], "health")

    async def end(self, name: str, timeout_s: float = 90) -> int:
        """SIGTERM, as kubelet does; the exit status."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(timeout_s):
            return await process.wait()

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[admin_pb2_grpc.AdminAsyncStub]:
        target = f"{self.host('scheduler')}:{self.ports['admin']}"
        async with open_channel(target, self.tls / Role.OPERATOR, Role.SCHEDULER) as channel:
            yield admin_pb2_grpc.AdminStub(channel)

    async def status(self, until: Callable[[admin_pb2.AdminStatus], bool] = lambda _: True) -> admin_pb2.AdminStatus:
        """The first status that meets the condition."""
        async with asyncio.timeout(START_S), self.admin() as admin:
            while True:
                status = await admin.Status(admin_pb2.AdminStatusRequest())
                if until(status):
                    return status
                await asyncio.sleep(0.05)  # other processes are watched

    async def said(self, name: str, sentence: str) -> None:
        """Until the log of a process has the sentence."""
        async with asyncio.timeout(START_S):
            while True:
                if sentence in self.log(name):
                    return
                await asyncio.sleep(0.05)  # other processes are watched

    def log(self, name: str) -> str:
        return (self.base / f"{name}.log").read_text(errors="replace")

    async def _run(
        self,
        name: str,
        module: str,
        config: dict[str, Any],
        *arguments: str,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        file = self.base / f"{name}.json"
        file.write_text(json.dumps(config))
        with (self.base / f"{name}.log").open("ab") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                *self.nodes.get(name, ("", ()))[1],
                *(sys.executable, "-m", module, "--config", str(file), *arguments),
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])} | environment,
                stdout=log,
                stderr=log,
            )

    async def _until(self, name: str, port: int, page: str) -> None:
        """Its readiness probe, as kubelet asks it."""
        async with asyncio.timeout(START_S), aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.get(f"http://{self.host(name)}:{port}/{page}") as answer:
                        if answer.status == 200:
                            return
                except aiohttp.ClientConnectionError:
                    pass
                await asyncio.sleep(0.1)  # another process is watched

    async def kill(self) -> None:
        for process in self.processes.values():
            if process.returncode is None:
                process.kill()
            await process.wait()


@asynccontextmanager
async def running(
    models: dict[str, Path],
    engines: int,
    memory: dict[str, int] = MEMORY,
    engine: str = "aegaeon_sidecar",
    hold_s: float = 30.0,
    settings: Callable[[str], dict[str, Any]] = lambda _: {},
    environment: Callable[[str], dict[str, str]] = lambda _: {},
    loopback: str = LOOPBACK,
) -> AsyncIterator[tuple[Pods, openai.AsyncOpenAI]]:
    """All of them, and a client. What they wrote is printed when the test fails."""
    base = Path(tempfile.mkdtemp(prefix="aegaeon-pods-", dir="/dev/shm"))
    pods = Pods(models, base, memory, engine)
    pods.hold_s, pods.settings, pods.environment, pods.loopback = hold_s, settings, environment, loopback
    try:
        async with AsyncExitStack() as exits:
            exits.push_async_callback(pods.kill)
            await pods.start_scheduler()
            await asyncio.gather(pods.start_gateway(), *(pods.start_engine(f"engine-{i}") for i in range(engines)))
            client = clients.async_client(pods.url, KEY, timeout=90)
            yield pods, await exits.enter_async_context(client)
    except BaseException:
        for name in pods.processes:
            print(f"---- {name}\n{pods.log(name)[-4000:]}")  # noqa: T201  # pytest shows it with the failure
        raise
    finally:
        shutil.rmtree(base)
