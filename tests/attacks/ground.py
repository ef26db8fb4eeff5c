"""The stack that is attacked: a pool's processes with mutual TLS as pods run them, tenants, a picker beside it, and a
Redis that is slow.

Gateway, scheduler, engines and the innocent tenant run at normal priority; attackers are processes of their own at
nice 19 (`attacks.attacker`), so that what they compute is not taken for what they do to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from attacks.target import REQUESTS_A_MINUTE, TOKENS_A_MINUTE, Target
from google.protobuf.json_format import MessageToDict
from slow_redis import HAS_REDIS, SlowRedis, running_redis
from stack.pods import KEY, Pods, spec

from aegaeon_cli.demo.stack import free_port
from aegaeon_proto.v1 import admin_pb2, gateway_pb2, model_pb2

STRANGER, METERED, PACED, NEIGHBOUR = "sk-stranger", "sk-metered", "sk-paced", "sk-neighbour"
REDIS_DELAY_S = 0.3  # of each answer: no outage, and not one that quotas may be passed by
INNOCENT_MODELS = ("qwen3", "llama")
OPEN_MODEL = "mistral"
GOOD_MODELS = (*INNOCENT_MODELS, OPEN_MODEL)
MEMORY = {"device_bytes": 24 << 20, "slab_bytes": 256 << 10, "host_kv_bytes": 24 << 20, "host_cache_bytes": 96 << 20}
DISK_BYTES = 64 << 20
HOLD_S = 5.0
ENGINES = ("engine-0", "engine-1")
GRPC = ("scheduler", "admin", "sink")
MODULE = "attacks.watched_gateway"
TESTS = Path(__file__).parents[1]


class Ground(Pods):
    """Pods with two tenants, a disk tier, and a gateway whose event loop is watched."""

    def __init__(self, models: Mapping[str, Path], base: Path) -> None:
        super().__init__({name: models[name] for name in GOOD_MODELS}, base, MEMORY)
        self.picker, self.gateway_pages = free_port(), free_port()
        self.folder = base / "stranger"
        self.folder.mkdir()
        self.redis: str | None = None

    @property
    def loop_record(self) -> Path:
        return self.base / "gateway.loop"

    def target(self) -> Target:
        return Target(
            gateway=self.ports["gateway"],
            key=STRANGER,
            shared=INNOCENT_MODELS[0],
            open=OPEN_MODEL,
            metered_key=METERED,
            paced_key=PACED,
            neighbour_key=NEIGHBOUR,
            grpc=tuple(self.ports[name] for name in GRPC if name in self.ports),
            pages=(self.ports["pages"], self.gateway_pages, *self.engine_pages.values()),
            picker=self.picker,
            folder=str(self.folder),
            web=free_port(),
        )

    def dead(self) -> list[str]:
        """Processes that have ended, with their exit status."""
        ended = ((name, process.returncode) for name, process in self.processes.items())
        return [f"{name} (status {status})" for name, status in ended if status is not None]

    async def set_models(self, hostile: Mapping[str, model_pb2.ModelSource]) -> None:
        """The whole list, as the operator gives it: the good models and those of the stranger's ModelPool."""
        models = [spec(name, path) for name, path in self._models.items()]
        models += [
            model_pb2.ModelSpec(name=name, source=source, ttft_s=5, tbt_s=0.2) for name, source in hostile.items()
        ]
        async with self.admin() as admin:
            await admin.SetTenants(admin_pb2.SetTenantsRequest(tenants=tenants(tuple(hostile))), timeout=30)
            await admin.SetCatalog(admin_pb2.SetCatalogRequest(models=models, drain_s=0.5, retry=True), timeout=30)

    async def start_picker(self) -> None:
        endpoints = f"127.0.0.1:{self.ports['gateway']}"
        ports = ("--listen", f"127.0.0.1:{self.picker}", "--health-listen", f"127.0.0.1:{free_port()}")
        options = ("--endpoints", endpoints, *ports, "--metrics-port", "0", "--tls", "off")
        with (self.base / "picker.log").open("ab") as log:
            self.processes["picker"] = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "aegaeon_picker", *options), stdout=log, stderr=log
            )
        async with asyncio.timeout(60):
            while "picking on port" not in self.log("picker"):
                await asyncio.sleep(0.1)  # another process is watched

    async def _run(self, name: str, module: str, config: dict[str, Any], *arguments: str, **more: Any) -> None:
        match name:
            case "scheduler":
                config["tenants"] = MessageToDict(tenants(()), preserving_proto_field_name=True)
            case "gateway":
                module = MODULE
                config |= {"metrics_listen": f"127.0.0.1:{self.gateway_pages}"}
                config |= {
                    "redis": self.redis,
                    "hold_s": HOLD_S,
                    "fetched": str(self.base / "tokenizers"),
                    "max_body_bytes": 16 << 20,
                }
            case _:
                config["disk"] = {"folder": str(self.base / "disk"), "budget_bytes": DISK_BYTES}
        await super()._run(name, module, config, *arguments, **more)


def tenants(hostile: tuple[str, ...]) -> gateway_pb2.Tenants:
    """The innocent tenant, the stranger, who shares its models and has some of its own, two with quotas, a neighbour of
    the stranger's."""

    def tenant(name: str, key: str, *models: str, **quota: float) -> gateway_pb2.Tenant:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return gateway_pb2.Tenant(
            name=name, models=[*GOOD_MODELS, *models], key_sha256=[digest], quota=gateway_pb2.Quota(**quota)
        )

    several = [
        tenant("innocent", KEY),
        tenant("stranger", STRANGER, *hostile),
        tenant("metered", METERED, tokens_per_minute=TOKENS_A_MINUTE),
        tenant("paced", PACED, requests_per_minute=REQUESTS_A_MINUTE),
        tenant("neighbour", NEIGHBOUR),
    ]
    return gateway_pb2.Tenants(tenants=several, open_models=[OPEN_MODEL])


@asynccontextmanager
async def slow_redis(base: Path) -> AsyncIterator[str]:
    """Its URL."""
    slow = SlowRedis(f"unix://{base}/redis.sock", base / "slow.sock")
    slow.delay_s = REDIS_DELAY_S
    with running_redis(base / "redis.sock"):
        async with slow.serving():
            yield f"unix://{slow.path}"


@asynccontextmanager
async def standing(models: Mapping[str, Path]) -> AsyncIterator[Ground]:
    """All of them, ready. Their logs are below the folder that AEGAEON_ATTACK_LOGS names, where it does."""
    base = Path(tempfile.mkdtemp(prefix="aegaeon-attacks-", dir="/dev/shm"))
    os.environ["PYTHONPATH"] = str(TESTS)  # for attacks.watched_gateway and the process that forks attackers
    ground = Ground(models, base)
    try:
        async with AsyncExitStack() as exits:
            exits.push_async_callback(ground.kill)
            if HAS_REDIS:
                ground.redis = await exits.enter_async_context(slow_redis(base))
            await ground.start_scheduler()
            await asyncio.gather(*(ground.start_engine(name) for name in ENGINES), ground.start_picker())
            await ground.start_gateway()
            yield ground
    finally:
        if kept := os.environ.get("AEGAEON_ATTACK_LOGS"):
            for log in base.glob("*.log"):
                shutil.copy(log, Path(kept))
        with contextlib.suppress(OSError):
            shutil.rmtree(base)
