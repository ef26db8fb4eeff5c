"""A pool as it runs in pods, without Kubernetes: models, engines and certificates change while streams run."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import openai
import pytest
import pytest_asyncio
from stack.pods import Pods, running, spec, tenants
from stack.traffic import PROMPTS, stream

from aegaeon_operator.pki import make_authority
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import admin_pb2, model_pb2

Running = tuple[Pods, openai.AsyncOpenAI]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(four_models: dict[str, Path]) -> AsyncIterator[Running]:
    async with running({name: four_models[name] for name in ("llama", "qwen3")}, engines=2) as made:
        yield made


async def set_catalog(pods: Pods, *models: model_pb2.ModelSpec, drain_s: float = 60) -> admin_pb2.SetCatalogReply:
    async with pods.admin() as admin:
        return await admin.SetCatalog(admin_pb2.SetCatalogRequest(models=models, drain_s=drain_s))


async def grant(pods: Pods, *models: str) -> None:
    async with pods.admin() as admin:
        await admin.SetTenants(admin_pb2.SetTenantsRequest(tenants=tenants(*models)))


async def listed(client: openai.AsyncOpenAI, *models: str) -> None:
    """Until the gateway has heard of the new list."""
    async with asyncio.timeout(20):
        while {model.id async for model in client.models.list()} != set(models):  # noqa: ASYNC110  # see below
            await asyncio.sleep(0.02)  # another process is watched


@pytest.mark.asyncio(loop_scope="module")
async def test_models_are_added_and_removed_during_streams_without_a_restart(
    pool: Running, four_models: dict[str, Path]
) -> None:
    pods, client = pool
    pids = {name: process.pid for name, process in pods.processes.items()}
    jobs = [(model, prompt) for model in ("llama", "qwen3") for prompt in PROMPTS]
    expected = [await stream(client, *job) for job in jobs]
    begun = asyncio.Event()
    streams = asyncio.gather(*(stream(client, *job, begun.set) for job in jobs))
    await begun.wait()
    await grant(pods, "llama", "qwen3", "qwen2")
    reply = await set_catalog(pods, spec("qwen3", four_models["qwen3"]), spec("qwen2", four_models["qwen2"]))
    assert (list(reply.added), list(reply.removed)) == (["qwen2"], ["llama"])
    await listed(client, "qwen3", "qwen2")
    assert await stream(client, "qwen2", PROMPTS[0])
    assert await streams == expected, "what was asked before is answered, of the withdrawn model too"
    with pytest.raises(openai.NotFoundError):
        await stream(client, "llama", PROMPTS[0])
    status = await pods.status(lambda s: not s.withdrawing)
    assert [model.spec.name for model in status.catalog.models] == ["qwen3", "qwen2"]
    await pods.status(lambda s: not any("llama" in i.resident for i in s.pool.instances))
    assert {name: process.pid for name, process in pods.processes.items()} == pids
    reply = await set_catalog(pods, spec("llama", four_models["llama"]), spec("qwen3", four_models["qwen3"]))
    assert list(reply.added) == ["llama"]
    await listed(client, "llama", "qwen3")
    assert [await stream(client, *job) for job in jobs] == expected


@pytest.mark.asyncio(loop_scope="module")
async def test_a_pool_whose_addresses_are_of_ipv6_alone_answers_as_any_other(
    pool: Running, four_models: dict[str, Path]
) -> None:
    expected = await stream(pool[1], "llama", PROMPTS[0])
    async with running({"llama": four_models["llama"]}, engines=1, loopback="[::1]") as (pods, client):
        assert await stream(client, "llama", PROMPTS[0]) == expected
        status = await pods.status()
    assert [each.instance for each in status.pool.instances if each.alive] == ["engine-0"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_draining_engine_hands_off_its_streams_without_an_interruption(pool: Running) -> None:
    pods, client = pool
    jobs = [(model, prompt) for model in ("llama", "qwen3") for prompt in PROMPTS]
    expected = [await stream(client, *job) for job in jobs]
    for name in ("engine-0", "engine-1"):  # one after the other, as a rolling update does
        begun = asyncio.Event()
        streams = asyncio.gather(*(stream(client, *job, begun.set) for job in jobs))
        await begun.wait()
        assert await pods.end(name) == 0
        assert await streams == expected
        await pods.start_engine(name)
        await pods.status(lambda s: {i.instance for i in s.pool.instances if i.alive} == {"engine-0", "engine-1"})
    assert "lost" not in pods.log("gateway"), "a drain that has somewhere to go loses nothing"


@pytest.mark.asyncio(loop_scope="module")
async def test_certificates_are_renewed_during_streams_and_untrusted_peers_are_refused(pool: Running) -> None:
    pods, client = pool
    expected = await stream(client, "qwen3", PROMPTS[0])
    begun = asyncio.Event()
    streaming = asyncio.create_task(stream(client, "qwen3", PROMPTS[0], begun.set))
    await begun.wait()
    pods.write_certificates(pods.authority)
    await pods.end("engine-0")
    await pods.start_engine("engine-0")  # dials, and is dialled, with the new ones
    assert await streaming == expected
    process = pods.processes.pop("engine-1")
    process.kill()
    await process.wait()
    await pods.status(lambda s: {i.instance for i in s.pool.instances if i.alive} == {"engine-0"})
    foreign = pods.write_certificates(make_authority("foreign", datetime.now(UTC)), pods.base / "foreign")
    await pods.begin_engine("engine-1", foreign)
    await pods.said("engine-1", "its certificate is not one of this pool")
    await pods.status(lambda s: {i.instance for i in s.pool.instances if i.alive} == {"engine-0"})
    pods.write_certificates(pods.authority, foreign)
    shutil.rmtree(foreign / Role.ENGINE)
    shutil.copytree(foreign / Role.GATEWAY, foreign / Role.ENGINE)
    await pods.said("engine-1", "a certificate of role gateway may not call Engine.Attach, which is for: engine")
    await pods.said("scheduler", "audit: refused ipv4:127.0.0.1:")
    await pods.status(lambda s: {i.instance for i in s.pool.instances if i.alive} == {"engine-0"})
    pods.write_certificates(pods.authority, foreign)
    await pods.status(lambda s: {i.instance for i in s.pool.instances if i.alive} == {"engine-0", "engine-1"})
    assert await stream(client, "qwen3", PROMPTS[0]) == expected
