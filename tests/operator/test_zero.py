"""Scale from zero: the operator is notified of the first request at once and starts an engine."""

from __future__ import annotations

import asyncio
import base64
import os
import tempfile
from collections.abc import Callable, Collection
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from operator_objects import KEY, PLATFORM, gpu_pool, model_pool
from operator_requests import submitted
from tests.operator.scripted import scripted
from tests.operator.test_scheduler_link import scheduler

from aegaeon_operator.kube import schedulers
from aegaeon_operator.kube.client import Cluster, Resource
from aegaeon_operator.kube.controller import Controller
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.facts import Key, SchedulerFacts, Subject
from aegaeon_operator.reconcile.processes import scheduler_settings
from aegaeon_operator.spec.resources import GpuPoolSpec
from aegaeon_proto.channels import open_channel
from aegaeon_proto.roles import Role

Json = dict[str, Any]
ZERO = {"replicas": 0, "min": 0, "max": 2}


LookAt = Callable[[Collection[Key]], None]


class Kept(Cluster):
    """An API server that takes everything; `objects` by kind and name."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self._versions = count(10)

    async def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        return self.objects.get((resource.kind, name))

    async def create(self, manifest: Json) -> Json:
        return await self.apply(manifest)

    async def apply(self, manifest: Json, subresource: str = "", force: bool = True) -> Json:
        key = manifest["kind"], manifest["metadata"].get("name", "")
        before = self.objects.get(key, {})
        made = {**before, **manifest}
        made["metadata"] = {"uid": f"uid-of-{key[1]}", **before.get("metadata", {}), **manifest["metadata"]}
        made["metadata"]["resourceVersion"] = str(next(self._versions))
        self.objects[key] = made
        return made

    async def warning(self, about: Subject) -> str:
        return ""

    async def delete(self, live: Json) -> None:
        self.objects.pop((live["kind"], live["metadata"]["name"]), None)

    async def reconciled(self, store: Store, look_at: LookAt = lambda _: None, **pool: Any) -> Controller:
        """A controller that has reconciled a GpuPool with a ModelPool of llama."""
        for manifest in (gpu_pool(**pool), model_pool("red", "llama")):
            self.objects[manifest["kind"], manifest["metadata"]["name"]] = manifest
            store.put(manifest)
        controller = Controller(self, store, PLATFORM)
        controller.look_at = look_at
        await controller.reconcile(KEY)
        return controller

    async def ready(self, store: Store, name: str) -> None:
        """The pod of a Deployment of the pool becomes ready."""
        store.put(await self.apply(self.objects["Deployment", f"pool-{name}"] | {"status": {"readyReplicas": 1}}))

    @property
    def engines(self) -> int:
        return int(self.objects["StatefulSet", "pool-engine"]["spec"]["replicas"])


def into(queue: asyncio.Queue[Key]) -> LookAt:
    def look_at(keys: Collection[Key]) -> None:
        for key in keys:
            queue.put_nowait(key)

    return look_at


@pytest.fixture
def cluster() -> Kept:
    return Kept()


async def submit(target: str, tls: Path, cluster: Kept) -> Any:
    """One request of a gateway, which goes on waiting; returns its stream."""
    secret = cluster.objects["Secret", "pool-gateway-tls"]
    for name, content in secret["data"].items():
        (tls / name).write_bytes(base64.b64decode(content))
    channel = open_channel(target, tls, Role.SCHEDULER)
    return await submitted(channel, "llama")


async def test_the_first_request_of_a_pool_at_zero_is_reported_at_once_and_starts_an_engine(
    cluster: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked = Store(), asyncio.Queue[Key]()
    controller = await cluster.reconciled(store, into(asked), engines=ZERO)
    assert cluster.engines == 0
    (tmp_path / "scheduler").mkdir()
    (tmp_path / "gateway").mkdir()
    async with scheduler(tmp_path / "scheduler", cluster.objects["Secret", "pool-scheduler-tls"]) as (listen, admin):
        monkeypatch.setattr(schedulers, "admin_target", lambda key, name: admin)
        await cluster.ready(store, "scheduler")
        assert await controller.reconcile(KEY) > 0
        assert asked.empty()
        stream = await submit(listen, tmp_path / "gateway", cluster)
        assert await asyncio.wait_for(asked.get(), 60) == KEY
        assert await controller.reconcile(KEY) == 0, "it looks again at once, with what it has just heard"
        await controller.reconcile(KEY)
        assert cluster.engines == 1
        stream.cancel()
        await controller.close()


async def test_a_gpu_pool_that_is_gone_leaves_no_connection_while_its_model_pools_stay(
    cluster: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, folders = Store(), tmp_path / "folders"
    folders.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folders))
    controller = await cluster.reconciled(store, engines=ZERO)
    async with scheduler(tmp_path, cluster.objects["Secret", "pool-scheduler-tls"]) as (_, admin):
        monkeypatch.setattr(schedulers, "admin_target", lambda key, name: admin)
        await cluster.ready(store, "scheduler")
        await controller.reconcile(KEY)
        assert len(os.listdir(folders)) == 1, "certificates of the connection"
        gone = gpu_pool()
        store.remove({**gone, "metadata": {**gone["metadata"], "resourceVersion": "1000"}})
        await controller.reconcile(KEY)
        assert not os.listdir(folders)
        assert not [task for task in asyncio.all_tasks() if "_await_demand" in repr(task)]
    await controller.close()


async def test_the_first_request_is_awaited_of_the_scheduler_that_leads_now(
    cluster: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that led before may be paused, and answer nothing for long."""
    store, asked, requested = Store(), asyncio.Queue[Key](), asyncio.Event()
    leads = ["scheduler"]

    def facts(name: str) -> SchedulerFacts:
        return SchedulerFacts(name, standby=name not in leads, term=len(leads))

    scripted(monkeypatch, facts, {"standby": requested})
    controller = await cluster.reconciled(store, into(asked), engines=ZERO, scheduling={"standby": True})
    for name in ("scheduler", "standby"):
        await cluster.ready(store, name)
    await controller.reconcile(KEY)
    leads[:] = ["standby"]
    await controller.reconcile(KEY)
    requested.set()
    assert await asyncio.wait_for(asked.get(), 60) == KEY
    await controller.close()


@pytest.mark.parametrize(
    ("roles", "hold_start", "start_s"),
    [
        ({"engines": ZERO}, None, 600.0),
        ({"prefill": {"replicas": 1}, "decode": ZERO}, None, 600.0),
        ({"engines": ZERO}, "90s", 90.0),
        ({"engines": {"replicas": 0}}, "2m", 120.0),
        ({"engines": {"replicas": 1, "min": 1, "max": 2}}, None, 0.0),
    ],
)
def test_requests_are_held_during_a_start_where_a_pool_may_scale_to_zero(
    roles: Json, hold_start: str | None, start_s: float
) -> None:
    asked = {**roles, "memory": gpu_pool()["spec"]["memory"], "scheduling": {"holdStart": hold_start}}
    spec = GpuPoolSpec.model_validate({**asked, "scheduling": {"holdStart": hold_start} if hold_start else {}})
    assert scheduler_settings("pool", spec, ())["start_s"] == start_s
