"""What the operator changes or deletes is owned, by uid, by a pool or its ModelPools; labels prove nothing."""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from operator_api import api_server
from operator_memory import At, Call, Memory
from operator_objects import gpu_pool, model_pool
from operator_world import OperatorWorld

from aegaeon_operator.kube.client import CHILDREN, Cluster

Json = dict[str, Any]
KINDS = {one.kind for one in CHILDREN}
TENANT = "red"


class World(OperatorWorld):
    """One pool with a ModelPool of another namespace."""

    async def look(self, times: int = 1) -> None:
        """Look after any backoff."""
        for _ in range(times):
            self.now += 60.0
            await super().look()

    def children(self) -> list[At]:
        return sorted(at for at in self.memory.objects if at.kind in KINDS)

    def owners(self) -> set[tuple[str | None, str]]:
        pools = ("GpuPool", "ModelPool")
        return {(at.namespace, one["metadata"]["uid"]) for at, one in self.memory.objects.items() if at.kind in pools}

    def is_owned(self, body: Json) -> bool:
        references = body["metadata"].get("ownerReferences") or []
        return any(
            (body["metadata"]["namespace"], one["uid"]) in self.owners() for one in references if one.get("controller")
        )


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    memory = Memory()
    memory.put(gpu_pool(allowedNamespaces=[TENANT]))
    routed = {"parentRefs": [{"name": "public"}]}
    memory.put(model_pool("red", "llama", namespace=TENANT, gateway=routed))
    async with api_server(memory.answer) as api:
        world = World(memory, Cluster(api))
        await world.look()
        yield world


def copied(body: Json, namespace: str, name: str, owned: bool = False) -> Json:
    """What `kubectl get -o yaml`, an edit and `kubectl apply` make of it."""
    found = copy.deepcopy(body)
    for own in ("uid", "resourceVersion", "creationTimestamp", *(() if owned else ("ownerReferences",))):
        found["metadata"].pop(own, None)
    found["metadata"] |= {"namespace": namespace, "name": name}
    return found


async def test_a_copied_service_and_a_copied_secret_are_left_alone() -> None:
    async with a_world() as world:
        service, secret = At("Service", "infra", "pool-gateway"), At("Secret", "infra", "pool-gateway-tls")
        mine = world.memory.put(copied(world.memory.objects[service], "infra", "my-loadbalancer"))
        mirrored = world.memory.put(copied(world.memory.objects[secret], "monitoring", "pool-gateway-tls", owned=True))
        await world.look(2)
        assert world.memory.objects[At("Service", "infra", "my-loadbalancer")] == mine
        assert world.memory.objects[At("Secret", "monitoring", "pool-gateway-tls")] == mirrored


async def test_what_is_wanted_no_more_is_deleted_as_it_was_seen_and_that_is_said(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with a_world() as world:
        with caplog.at_level(logging.INFO):
            world.memory.put(gpu_pool(engines=None, prefill={"replicas": 0}, decode={"replicas": 0}))
            gone = At("Service", "infra", "pool-engine")
            before = world.memory.objects[gone]
            await world.look(2)
        assert gone not in world.memory.objects
        assert (Call("delete", gone), before) in world.memory.written
        assert "deleted Service infra/pool-engine: the spec no longer needs it" in caplog.text
        events = [event for at, event in world.memory.objects.items() if at.kind == "Event"]
        (deletion,) = (event for event in events if event["message"].startswith("deleted Service pool-engine"))
        assert (deletion["reason"], deletion["involvedObject"]["kind"], deletion["involvedObject"]["name"]) == (
            "Deleted",
            "GpuPool",
            "pool",
        )


async def test_an_object_that_changes_before_its_deletion_is_looked_at_again() -> None:
    async with a_world() as world:
        world.memory.put(gpu_pool(engines=None, prefill={"replicas": 0}, decode={"replicas": 0}))
        gone, once = At("Service", "infra", "pool-engine"), [True]

        def disowned(call: Call) -> int:
            """Another client takes it over after it was listed, and before the operator's call arrives."""
            if call == Call("delete", gone) and once.pop() if once else False:
                body = world.memory.objects[gone]
                world.memory.put({**body, "metadata": {**body["metadata"], "ownerReferences": []}})
            return 0

        world.memory.failing = disowned
        await world.look(3)
        assert gone in world.memory.objects
        (pool,) = (one for at, one in world.memory.objects.items() if at.kind == "GpuPool")
        assert "ApplyFailed" not in {one["reason"] for one in pool["status"]["conditions"]}


async def test_a_child_without_our_labels_is_still_ours_and_gets_them_again() -> None:
    async with a_world() as world:
        at = At("Deployment", "infra", "pool-gateway")
        body = world.memory.objects[at]
        world.memory.put({**body, "metadata": {**body["metadata"], "labels": {}}})
        await world.look()
        assert world.memory.objects[at]["metadata"]["labels"] == body["metadata"]["labels"]


async def test_children_that_were_restored_without_an_owner_are_reported_and_left_alone() -> None:
    """As by a backup tool: it keeps names and labels, and drops owners."""
    async with a_world() as world:
        at = At("Deployment", "infra", "pool-gateway")
        restored = copied(world.memory.objects[at], "infra", "pool-gateway")
        restored["spec"]["replicas"] = 7
        world.memory.remove(at)
        restored = world.memory.put(restored)
        await world.look()
        assert world.memory.objects[at] == restored
        (pool,) = (one for at, one in world.memory.objects.items() if at.kind == "GpuPool")
        (accepted,) = (one for one in pool["status"]["conditions"] if one["type"] == "Accepted")
        assert (
            "Deployment pool-gateway: an object of this name exists and is not owned by this pool"
            in accepted["message"]
        )


async def test_a_pool_that_is_replaced_by_one_of_its_name_makes_its_own_when_the_first_ones_are_collected() -> None:
    async with a_world() as world:
        before = set(world.children())
        world.memory.remove(At("GpuPool", "infra", "pool"))
        world.memory.put(
            {**gpu_pool(allowedNamespaces=[TENANT]), "metadata": gpu_pool()["metadata"] | {"uid": "another"}}
        )
        await world.look()
        world.memory.collect_garbage()
        await world.look(2)
        assert set(world.children()) == before
        assert all(world.is_owned(world.memory.objects[at]) for at in world.children())


async def test_whatever_is_copied_restored_or_relabelled_nothing_that_is_not_owned_is_touched() -> None:
    """A thousand steps of one of the three, with any child and any namespace; looks in between."""
    dice = random.Random("ownership")
    async with a_world() as world:
        memory, touched = world.memory, list[tuple[Call, Json | None]]()
        for step in range(1000):
            _one_step(dice, world, step)
            if step % 20 == 19:
                memory.written.clear()
                await world.look()
                touched += [
                    (call, before)
                    for call, before in memory.written
                    if call.at.kind in KINDS and before is not None and not world.is_owned(before)
                ]
        assert touched == []
        for at in [at for at in world.children() if not world.is_owned(memory.objects[at])]:
            memory.remove(at)
        await world.look(3)
        (pool,) = (one for at, one in memory.objects.items() if at.kind == "GpuPool")
        assert {one["type"]: one["reason"] for one in pool["status"]["conditions"]}["Accepted"] == "Applied"


def _one_step(dice: random.Random, world: World, step: int) -> None:
    memory = world.memory
    at = dice.choice(world.children())
    body, namespace = memory.objects[at], dice.choice(["infra", TENANT, "monitoring"])
    labels = body["metadata"].get("labels") or {}
    what = dice.choice(["copied", "copied with its owner", "restored", "relabelled", "disowned"])
    if what == "copied":
        memory.put(copied(body, namespace, f"copy-{step}"))
    elif what == "copied with its owner":  # in its own namespace it would be owned, as far as Kubernetes is concerned
        other = dice.choice([one for one in ("infra", TENANT, "monitoring") if one != at.namespace])
        memory.put(copied(body, other, at.name, owned=True))
    elif what == "restored":
        memory.remove(at)
        memory.put(copied(body, str(at.namespace), at.name))
    elif what == "relabelled":
        changed = {**labels, dice.choice(["app.kubernetes.io/instance", "serving.aegaeon.io/pool-namespace"]): "red"}
        memory.put({**body, "metadata": {**body["metadata"], "labels": dice.choice([changed, {}])}})
    else:
        memory.put({**body, "metadata": {**body["metadata"], "ownerReferences": []}})
