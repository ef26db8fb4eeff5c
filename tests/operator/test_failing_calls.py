"""Each call of a look fails in turn, once or for good: what others changed is applied within two seconds anyway."""

from __future__ import annotations

import base64
import json
from collections import Counter
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from operator_api import api_server
from operator_memory import At, Call, Memory, never
from operator_objects import KEY, condition, gpu_pool, model_pool
from operator_world import OperatorWorld

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import Cluster

Json = dict[str, Any]
BACKOFF_S, STEP_S, LATE_S, GIVE_UP_S = 1.0, 0.5, 2.0, 60.0
TENANTS, SHARDS = ("blue", "red"), "pool-models-"


class World(OperatorWorld):
    """An operator and a pool, by a clock of its own: it looks when a look, a Secret or the queue's backoff says so."""

    def __init__(self, memory: Memory, cluster: Cluster) -> None:
        super().__init__(memory, cluster)
        self.controller.look_at = lambda keys: setattr(self, "due", self.now)
        self.due, self.version = 0.0, 0
        self.failed: Call | None = None
        self.lasts = False

    async def begin(self) -> None:
        self.change()
        await self.list_all()
        await self.until_applied()

    def change(self) -> None:
        """Another folder and another Secret of each tenant, and another number of engines, as watches bring them."""
        self.version += 1
        bodies = [gpu_pool(engines={"replicas": 1 + self.version % 2})]
        for name in TENANTS:
            secret, model = f"of-{name}-{self.version}", f"model-{name}"
            keys = {"keys": base64.b64encode(f"a-key-of-tenant-{name}".encode()).decode()}
            head = {"name": secret, "namespace": "infra"}
            self.memory.put({"apiVersion": "v1", "kind": "Secret", "metadata": head, "data": keys})
            models = [{"name": model, "source": {"hostPath": f"{name}-{self.version}"}}]
            tenants = [{"name": name, "keySecretRef": {"name": secret, "key": "keys"}}]
            bodies.append(model_pool(name, models=models, tenants=tenants))
        for body in bodies:
            self.store.put(self.memory.put(body))
        self.due = self.now

    def late(self) -> set[str]:
        """What was changed and is not applied yet, with what its status says."""
        objects = self.memory.objects
        written = {name: self.parts(at.name) for at, body in objects.items() if (name := at.name).startswith(SHARDS)}
        folders = {model: folder for parts in written.values() for model, folder in parts.items()}
        engines = objects.get(At("StatefulSet", "infra", "pool-engine"), {}).get("spec", {}).get("replicas")
        late = {"engines"} if engines != 1 + self.version % 2 else set()
        for name in TENANTS:
            if folders.get(f"model-{name}") != f"/srv/models/{name}-{self.version}" or not self._accepted(name):
                late.add(name)
        return late

    def parts(self, secret: str) -> dict[str, str]:
        """Folders by model of a Secret of the pool."""
        data = self.memory.objects[At("Secret", "infra", secret)]["data"]
        parts = json.loads(base64.b64decode(data["models.json"]))
        return {part["models"][0]["name"]: part["models"][0]["source"]["directory"] for part in parts}

    def own(self) -> set[str]:
        """What the call that fails is about."""
        if self.failed is None:
            return set()
        name = self.failed.at.name
        if name.startswith(SHARDS):
            return {model.removeprefix("model-") for model in self.parts(name)}
        return {"engines"} if name == "pool-engine" else {tenant for tenant in TENANTS if tenant in name}

    def _accepted(self, name: str) -> bool:
        body = self.memory.objects[At("ModelPool", "infra", name)]
        status = condition(body, "Accepted")
        return (status.get("reason"), status.get("observedGeneration")) == ("Accepted", body["metadata"]["generation"])

    async def until_applied(self) -> float:
        """Seconds until everything is."""
        began = self.now
        while True:
            await self.controller.secrets.step()
            if self.now >= self.due:
                self.due = self.now + BACKOFF_S
                with suppress(KubeError):
                    self.due = self.now + await self.controller.reconcile(KEY)
            if not self.late() - (self.own() if self.lasts else set()):
                return self.now - began
            assert self.now - began < GIVE_UP_S, f"{self.failed} fails, and {self.late()} is never applied"
            self.now += STEP_S

    def fail(self, place: int, status: int, lasts: bool) -> None:
        """The call of this place from now on, once or always."""
        self.failed, self.lasts = None, lasts
        places = count(1)

        def failing(call: Call) -> int:
            again = lasts and call == self.failed
            if next(places) == place:
                self.failed = call
                return status
            return status if again else 0

        self.memory.failing = failing


@pytest.mark.parametrize(("status", "lasts"), [(503, False), (500, True), (403, True)])
async def test_a_call_that_fails_makes_nothing_of_others_late(status: int, lasts: bool) -> None:
    memory = Memory()
    async with api_server(memory.answer) as api:
        world = World(memory, Cluster(api))
        await world.begin()
        late, failed = [], Counter[str]()
        for place in range(1, 200):
            world.change()
            world.fail(place, status, lasts)
            seconds = await world.until_applied()
            world.memory.failing = never
            if world.failed is None:
                break
            failed[f"{world.failed.verb} {world.failed.at.kind}"] += 1
            if seconds > LATE_S:
                late.append((world.failed, seconds))
            world.lasts = False
            await world.until_applied()
        await world.controller.close()
    assert late == []
    assert {"get Secret", "apply Secret", "apply StatefulSet", "status ModelPool", "status GpuPool"} <= set(failed)
