"""The secret of a pool's prefixes is made once and never replaced."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web
from operator_api import api_server, refusal
from operator_objects import KEY, PLATFORM, gpu_pool

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube import prefix_secret
from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.kube.gather import observe
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Live
from aegaeon_operator.spec.resources import GpuPool

AT = ChildKey("Secret", KEY.namespace, f"{KEY.name}-prefix")


class Secrets:
    """An API server with one Secret at most."""

    def __init__(self, held: dict[str, Any] | None = None) -> None:
        self.held = held

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response(self.held) if self.held else refusal(404, "not found")
        assert request.method == "POST", "created, never replaced"
        if self.held:
            return refusal(409, "already exists")
        self.held = await request.json()
        return web.json_response(self.held)


def pool() -> Live[GpuPool]:
    store = Store()
    store.put(gpu_pool())
    found = observe(KEY, store.of_pool(KEY), datetime.now(UTC), PLATFORM).gpu_pool
    assert found is not None
    return found


async def test_it_is_made_where_there_is_none_and_goes_with_its_pool() -> None:
    server = Secrets()
    async with api_server(server.answer) as api:
        made = await prefix_secret.ensure(Cluster(api), KEY, pool(), {})
        assert made is not None
        assert made["metadata"]["ownerReferences"][0]["uid"] == pool().uid
        assert len(base64.b64decode(made["data"]["secret"])) == 64
        assert await prefix_secret.ensure(Cluster(api), KEY, pool(), {AT: made}) is None


async def test_of_two_who_make_it_the_first_ones_counts() -> None:
    server = Secrets()
    async with api_server(server.answer) as api:
        made = await prefix_secret.ensure(Cluster(api), KEY, pool(), {})
        assert await prefix_secret.ensure(Cluster(api), KEY, pool(), {}) == made
    assert server.held == made


async def test_one_of_somebody_else_is_left_alone_and_said() -> None:
    theirs = {"metadata": {"name": AT.name, "namespace": AT.namespace, "labels": {}}, "data": {}}
    server = Secrets(theirs)
    async with api_server(server.answer) as api:
        with pytest.raises(KubeError):
            await prefix_secret.ensure(Cluster(api), KEY, pool(), {})
    assert server.held == theirs
