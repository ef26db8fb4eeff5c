"""The operator speaks to a real scheduler with the certificates that it makes, at the admin port alone."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest
from operator_objects import KEY, gpu_pool, model_pool, observed

from aegaeon_cli.demo.stack import free_port
from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube import certificates
from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.kube.gather import live
from aegaeon_operator.kube.scheduler import SchedulerLink
from aegaeon_operator.reconcile.cluster.desired import desired
from aegaeon_scheduler.config import SchedulerConfig, core_config
from aegaeon_scheduler.core.scheduler import Scheduler
from aegaeon_scheduler.service.admin import AdminService
from aegaeon_scheduler.service.server import Service


class Kept(Cluster):
    """An API server that takes everything."""

    def __init__(self) -> None:
        pass

    async def claim(self, manifest: dict[str, Any]) -> None:
        pass

    async def create(self, manifest: dict[str, Any]) -> dict[str, Any]:
        return manifest

    async def apply(self, manifest: dict[str, Any], subresource: str = "", force: bool = True) -> dict[str, Any]:
        return manifest


@asynccontextmanager
async def scheduler(folder: Path, secret: dict[str, Any]) -> AsyncIterator[tuple[str, str]]:
    """One with that Secret mounted; its address for engines and gateways, and that for the operator."""
    for name, content in secret["data"].items():
        (folder / name).write_bytes(base64.b64decode(content))
    listen, admin = (f"127.0.0.1:{free_port()}" for _ in range(2))
    config = SchedulerConfig(listen=listen, admin_listen=admin, tls=folder, models=())
    service = Service(config, Scheduler(core_config(config)), time.monotonic, count(1000, 1000).__next__)
    await service.start()
    try:
        yield listen, admin
    finally:
        await service.stop()


async def test_the_operator_is_authenticated_by_its_own_certificate_alone(tmp_path: Path) -> None:
    made = await certificates.ensure(Kept(), KEY, live(gpu_pool()), {}, datetime.now(UTC), {})
    secrets = {one["metadata"]["name"]: one for one in made.written}
    wanted = desired(observed(gpu_pool(), model_pool("red", "llama")))
    async with scheduler(tmp_path, secrets["pool-scheduler-tls"]) as (listen, admin):
        link = SchedulerLink(admin, made.own)
        facts = await link.exchange(wanted, 1 << 20)
        await link.tell_ending(["pool-engine-0"])
        await link.close()
        assert (set(facts.models), facts.refused) == ({"llama"}, {})
        for name in ("pool-gateway-tls", "pool-engine-tls", "pool-scheduler-tls"):
            files = {entry: base64.b64decode(content) for entry, content in secrets[name]["data"].items()}
            link = SchedulerLink(admin, files)
            with pytest.raises(KubeError, match=r"may not call Admin\.Status, which is for: operator"):
                await link.exchange(wanted, 1 << 20)
            await link.close()
        link = SchedulerLink(listen, made.own)
        with pytest.raises(KubeError, match="Method not found"):
            await link.exchange(wanted, 1 << 20)
        await link.close()


async def test_a_change_of_which_the_scheduler_took_a_part_is_undone_when_it_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await certificates.ensure(Kept(), KEY, live(gpu_pool()), {}, datetime.now(UTC), {})
    secrets = {one["metadata"]["name"]: one for one in made.written}
    before, after = (
        desired(observed(gpu_pool(), model_pool("red", *names))) for names in (["llama"], ["llama", "qwen"])
    )
    set_catalog, breaks = AdminService.SetCatalog, asyncio.Event()

    async def may_break(self: AdminService, request: Any, context: Any) -> Any:
        reply = await set_catalog(self, request, context)
        if breaks.is_set():
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the connection broke behind it")
        return reply

    monkeypatch.setattr(AdminService, "SetCatalog", may_break)
    async with scheduler(tmp_path, secrets["pool-scheduler-tls"]) as (_, admin):
        link = SchedulerLink(admin, made.own)
        assert set((await link.exchange(before, 1 << 20)).models) == {"llama"}
        breaks.set()
        with pytest.raises(KubeError, match="the connection broke"):
            await link.exchange(after, 1 << 20)
        breaks.clear()
        assert set((await link.exchange(before, 1 << 20)).models) == {"llama"}
        await link.close()


async def test_the_scheduler_learns_which_engines_the_pool_is_to_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await certificates.ensure(Kept(), KEY, live(gpu_pool()), {}, datetime.now(UTC), {})
    secrets = {one["metadata"]["name"]: one for one in made.written}
    expected: list[tuple[str, ...]] = []
    set_catalog = AdminService.SetCatalog

    async def noted(self: AdminService, request: Any, context: Any) -> Any:
        expected.append(tuple(request.engines.instances))
        return await set_catalog(self, request, context)

    monkeypatch.setattr(AdminService, "SetCatalog", noted)
    seen = observed(gpu_pool(), model_pool("red", "llama"))
    split = gpu_pool(engines=None, prefill={"replicas": 1}, decode={"replicas": 2})
    async with scheduler(tmp_path, secrets["pool-scheduler-tls"]) as (_, admin):
        link = SchedulerLink(admin, made.own)
        for look in (seen, seen, replace(seen, replicas={"unified": 0}), observed(split)):
            await link.exchange(desired(look), 1 << 20)
        await link.close()
    assert expected == [
        ("pool-engine-0", "pool-engine-1"),
        (),
        ("pool-prefill-0", "pool-decode-0", "pool-decode-1"),
    ]
