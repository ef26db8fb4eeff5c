"""Secrets of tenants: one that cannot be read costs no other tenant, vanishing for a moment costs nothing."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from operator_api import api_server
from operator_memory import At, Call, Memory
from operator_objects import condition, gpu_pool, model_pool
from operator_world import OperatorWorld

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube import secrets
from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.kube.secrets import EVERY_S, KEPT_S
from aegaeon_operator.spec.tenancy import hashes_of
from aegaeon_proto.parts import joined

Json = dict[str, Any]
TENANTS = ("red", "blue")
SECRETS = At("Secret", None)


def keys_of(tenant: str, keys: str) -> Json:
    content = {"keys": base64.b64encode(keys.encode()).decode()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": f"of-{tenant}", "namespace": "infra"},
        "data": content,
    }


def models_of(tenant: str, path: str = "one") -> Json:
    ref = {"name": f"of-{tenant}", "key": "keys"}
    served = [{"name": f"model-{tenant}", "source": {"hostPath": path}}]
    return model_pool(tenant, models=served, tenants=[{"name": tenant, "keySecretRef": ref}])


class World(OperatorWorld):
    """A pool and two tenants, each with a Secret."""

    async def later(self, seconds: float) -> None:
        """Secrets are looked at twice a second meanwhile, and the pool in the end."""
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            await self.controller.secrets.step()
        await self.look()

    def hashes(self, tenant: str) -> list[str]:
        shards = [secret for at, secret in self.memory.objects.items() if at.name.startswith("pool-models-")]
        parts = [part for secret in shards for part in json.loads(base64.b64decode(secret["data"]["models.json"]))]
        tenants = joined(parts)["tenants"]["tenants"]
        return [key for entry in tenants if entry["name"] == tenant for key in entry["key_sha256"]]

    def accepted(self, name: str) -> tuple[str, str, str]:
        status = condition(self.memory.objects[At("ModelPool", "infra", name)], "Accepted")
        return status["status"], status["reason"], status["message"]


@asynccontextmanager
async def a_world() -> AsyncIterator[World]:
    memory = Memory()
    memory.put(gpu_pool())
    for tenant in TENANTS:
        memory.put(keys_of(tenant, f"the-key-of-tenant-{tenant}"))
        memory.put(models_of(tenant))
    async with api_server(memory.answer) as api:
        world = World(memory, Cluster(api))
        await world.look()
        yield world


def unreadable(*names: str, status: int = 500) -> Any:
    """These cannot be decrypted, and so no list can be made."""

    def failing(call: Call) -> int:
        return status if call.at.kind == "Secret" and call.verb == "get" and call.at.name in names else 0

    return failing


@pytest.mark.parametrize("status", [403, 500, 503])
async def test_a_secret_that_cannot_be_read_harms_no_other_and_what_it_had_counts(status: int) -> None:
    async with a_world() as world:
        world.memory.failing = unreadable("of-blue", status=status)
        world.memory.put(keys_of("blue", "rotated-key-of-tenant-blue"))
        world.memory.put(models_of("red", "two"))
        await world.later(EVERY_S + 1)
        assert world.accepted("red") == ("True", "Accepted", "the GpuPool serves its models")
        assert "/srv/models/two" in str(
            base64.b64decode(world.memory.objects[At("Secret", "infra", "pool-config")]["data"]["scheduler.json"])
        )
        state, reason, message = world.accepted("blue")
        assert (state, reason) == ("True", "SecretUnreadable")
        assert "Secret of-blue cannot be read, its last content is used" in message
        assert world.hashes("blue") == hashes_of("the-key-of-tenant-blue")
        world.memory.failing = lambda call: 0
        await world.later(EVERY_S + 1)
        assert world.hashes("blue") == hashes_of("rotated-key-of-tenant-blue")
        assert world.accepted("blue")[1] == "Accepted"


async def test_keys_that_a_restarted_operator_cannot_read_go_on_counting() -> None:
    async with a_world() as world:
        world.memory.failing = unreadable("of-blue", "of-red", status=503)
        world.restart()
        await world.look()
        assert {tenant: world.hashes(tenant) for tenant in TENANTS} == {
            tenant: hashes_of(f"the-key-of-tenant-{tenant}") for tenant in TENANTS
        }
        assert world.accepted("blue")[:2] == ("True", "SecretUnreadable")


async def test_a_secret_that_was_never_read_and_cannot_be_is_its_model_pools_matter() -> None:
    async with a_world() as world:
        world.memory.failing = unreadable("of-green")
        world.memory.put(keys_of("green", "the-key-of-tenant-green"))
        world.memory.put(models_of("green"))
        await world.look()
        state, reason, message = world.accepted("green")
        assert (state, reason) == ("False", "SecretUnreadable")
        assert "Secret of-green in namespace infra cannot be read: get of secrets of-green fails" in message
        assert world.accepted("red")[1] == "Accepted"


async def test_keys_of_a_secret_that_vanished_for_a_moment_stay_valid() -> None:
    async with a_world() as world:
        world.memory.remove(At("Secret", "infra", "of-blue"))
        await world.later(KEPT_S - 1)
        assert world.hashes("blue") == hashes_of("the-key-of-tenant-blue")
        world.memory.put(keys_of("blue", "the-key-of-tenant-blue"))
        await world.later(2 * KEPT_S)
        assert world.hashes("blue") == hashes_of("the-key-of-tenant-blue")
        assert world.accepted("blue")[1] == "Accepted"


async def test_a_model_pool_that_is_replaced_with_its_secret_keeps_its_keys() -> None:
    """`kubectl replace --force`: both are deleted and made again, the ModelPool first."""
    async with a_world() as world:
        world.memory.remove(At("ModelPool", "infra", "blue"))
        world.memory.remove(At("Secret", "infra", "of-blue"))
        await world.look()
        world.memory.put(models_of("blue"))
        await world.look()
        assert world.hashes("blue") == hashes_of("the-key-of-tenant-blue")


@pytest.mark.parametrize("how", ["taken out", "deleted", "while lists fail", "while lists hang"])
async def test_a_revoked_key_is_dead_within_20_seconds(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_world() as world:
        if how == "while lists hang":
            monkeypatch.setattr(secrets, "_LIST_S", 0.01)
            monkeypatch.setattr(Cluster, "versions", lambda *_: asyncio.sleep(60.0))
        if how == "deleted":
            world.memory.remove(At("Secret", "infra", "of-blue"))
        else:
            world.memory.put(keys_of("blue", "another-key-of-tenant-blue"))
        if how == "while lists fail":  # of which one Secret is enough
            world.memory.failing = lambda call: 500 * (call in (Call("list", SECRETS), Call("watch", SECRETS)))
        for _ in range(39):  # 19.5 s
            world.now += 0.5
            await world.controller.secrets.step()
        world.memory.failing = lambda call: 0
        await world.look()
        assert world.hashes("blue") == ([] if how == "deleted" else hashes_of("another-key-of-tenant-blue"))


async def test_at_rest_no_secret_is_read_or_listed_however_many_namespaces_have_some() -> None:
    async with a_world() as world:
        for at in range(50):
            namespace = {"namespace": f"tenant-{at}"}
            world.memory.put(
                {**keys_of("green", "the-key-of-tenant-green"), "metadata": {"name": "of-green", **namespace}}
            )
            body = models_of("green")
            world.memory.put({**body, "metadata": body["metadata"] | namespace})
        await world.look()
        await world.later(EVERY_S)
        world.memory.calls.clear()
        for _ in range(120):  # a minute
            world.now += 0.5
            await world.controller.secrets.step()
        of_secrets = [call for call in world.memory.calls if call.at.kind == "Secret"]
        assert {call.verb for call in of_secrets} == {"watch"}
        assert len(of_secrets) <= 60 / EVERY_S


async def test_changes_that_the_server_does_not_keep_any_more_are_learned_by_a_list() -> None:
    async with a_world() as world:
        await world.later(EVERY_S)
        world.memory.put(keys_of("blue", "another-key-of-tenant-blue"))
        world.memory.failing = lambda call: 410 * (call.verb == "watch")
        await world.later(EVERY_S)
        assert world.hashes("blue") == hashes_of("another-key-of-tenant-blue")


async def test_each_call_of_a_look_that_fails_once_delays_no_other_object() -> None:
    """In turn: what is not the failing object's own is as it should be after the next look, which is a second later."""
    async with a_world() as world:
        world.memory.calls.clear()
        for tenant in TENANTS:
            world.memory.put(models_of(tenant, "before"))
        await world.look()
        calls = list(dict.fromkeys(call for call in world.memory.calls if call.verb not in ("list", "create")))
        assert {call.verb for call in calls} >= {"apply", "status"}
        for turn, failing in enumerate((call, status) for call in calls for status in (500, 503)):
            (call, status), once = failing, [1]

            def fails(one: Call, call: Call = call, status: int = status, once: list[int] = once) -> int:
                return status if one == call and once and once.pop() else 0

            world.memory.failing = fails
            for tenant in TENANTS:
                world.memory.put(models_of(tenant, f"turn-{turn}"))
            for _ in range(2):  # what failed is looked at again after a second
                with suppress(KubeError):
                    await world.look()
                world.now += 1.0
            assert not once
            late = [tenant for tenant in TENANTS if not _current(world, tenant) and call.at.name != tenant]
            assert late == [], (call, status)


def _current(world: World, tenant: str) -> bool:
    body = world.memory.objects[At("ModelPool", "infra", tenant)]
    return bool(body["status"]["observedGeneration"] == body["metadata"]["generation"])
