"""Leader election by a Lease: real HTTP, and an API server of the test's own that may be unavailable."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from operator_api import Handler, api_server, refusal

from aegaeon_kube.lease import TERM, Leadership, LeaseSettings


def lease_server(objects: dict[str, Any], away: asyncio.Event) -> Handler:
    """Of one Lease, with optimistic concurrency; 503 while it is unavailable."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if away.is_set():
            return refusal(503, "etcd is unavailable")
        if request.method == "GET":
            return web.json_response(objects["lease"]) if objects else refusal(404, "not found")
        lease = json.loads(await request.text())
        if objects and lease["metadata"].get("resourceVersion") != objects["lease"]["metadata"]["resourceVersion"]:
            return refusal(409, "modified")
        version = int(lease["metadata"].get("resourceVersion", 0)) + 1
        objects["lease"] = {**lease, "metadata": {**lease["metadata"], "resourceVersion": str(version)}}
        return web.json_response(objects["lease"])

    return handler


def of(holder: str, **more: Any) -> LeaseSettings:
    return LeaseSettings("infra", holder, life_s=0.5, period_s=0.05, **more)


async def test_terms_rise_with_every_leadership_regardless_of_clocks_and_fence_the_former_leader() -> None:
    objects: dict[str, Any] = {}
    clock = iter((1000, 900, 800))
    async with asyncio.timeout(60), api_server(lease_server(objects, asyncio.Event())) as api:
        first, second = (Leadership(api, of(holder), clock.__next__) for holder in ("a", "b"))
        await first.acquire()
        await second.acquire()  # the first one does not renew
        assert (first.term, second.term) == (1000, 1001)
        await first.replaced()
        again = Leadership(api, of("b"), clock.__next__)
        await again.acquire()
        assert again.term == 1002, "another life of the same holder is another leadership"


@pytest.mark.parametrize("annotations", [{}, {TERM: "seven"}, None])
async def test_a_leader_whose_term_was_deleted_begins_a_higher_one(annotations: Any) -> None:
    objects: dict[str, Any] = {}
    async with asyncio.timeout(60), api_server(lease_server(objects, asyncio.Event())) as api:
        leader = Leadership(api, of("a"))
        await leader.acquire()
        before = leader.term
        objects["lease"]["metadata"]["annotations"] = annotations
        await leader.acquire()
        assert leader.term > before


async def test_a_leader_keeps_leading_while_the_api_server_is_unavailable_and_after_a_restart(tmp_path: Path) -> None:
    objects: dict[str, Any] = {}
    away = asyncio.Event()
    async with asyncio.timeout(60), api_server(lease_server(objects, away)) as api:
        settings = of("a", memory=tmp_path / "term")
        first = Leadership(api, settings)
        await first.acquire()
        away.set()
        replaced = asyncio.create_task(first.replaced())
        restarted = Leadership(api, settings)
        await restarted.acquire()
        assert restarted.term == first.term
        fresh = asyncio.create_task(Leadership(api, of("b", memory=tmp_path / "other")).acquire())
        assert not replaced.done()
        assert not fresh.done(), "one that never led waits"
        away.clear()
        objects["lease"]["spec"]["holderIdentity"] = "c"
        await replaced
        await restarted.replaced()
        await ended(fresh)
        away.set()
        late = asyncio.create_task(Leadership(api, settings).acquire())
        await asyncio.wait((late,), timeout=0.2)
        assert not late.done(), "who was replaced remembers nothing"
        await ended(late)


async def test_a_new_leader_is_not_replaced_by_the_former_one_during_an_outage_of_the_server() -> None:
    objects: dict[str, Any] = {}
    away, asked = asyncio.Event(), asyncio.Semaphore(0)
    answer = lease_server(objects, away)

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.release()
        return await answer(request)

    async with asyncio.timeout(60), api_server(handler) as api:
        await Leadership(api, of("a")).acquire()
        second = Leadership(api, of("b"))
        await second.acquire()  # the first one does not renew
        away.set()
        while not asked.locked():  # what was asked before
            await asked.acquire()
        replaced = asyncio.create_task(second.replaced())
        for _ in range(3):  # looks that tell nothing
            await asked.acquire()
        assert not replaced.done()
        await ended(replaced)


async def test_a_leader_that_cannot_persist_its_term_still_leads(tmp_path: Path) -> None:
    async with asyncio.timeout(60), api_server(lease_server({}, asyncio.Event())) as api:
        leader = Leadership(api, of("a", memory=tmp_path / "no such folder" / "term"))
        await leader.acquire()
        assert leader.term


async def test_an_unresponsive_server_does_not_delay_shutdown() -> None:
    over = asyncio.Event()

    async def handler(_: web.Request) -> web.StreamResponse:
        await over.wait()
        return refusal(503, "too late")

    async with api_server(handler) as api:
        try:
            await asyncio.wait_for(Leadership(api, of("a")).release(), 20)  # a call of our own ends after 30 s
        finally:
            over.set()


async def test_a_lease_long_expired_by_all_clocks_is_acquired_at_once() -> None:
    objects: dict[str, Any] = {}
    async with asyncio.timeout(60), api_server(lease_server(objects, asyncio.Event())) as api:
        await Leadership(api, of("a")).acquire()
        objects["lease"]["spec"]["renewTime"] = "2020-01-01T00:00:00.000000Z"
        soon = Leadership(api, LeaseSettings("infra", "b", life_s=3600, period_s=0.05, over_s=30))
        await soon.acquire()
        assert objects["lease"]["spec"]["holderIdentity"] == "b"


@pytest.mark.parametrize("answers_after_s", [0.0, 1.8])
async def test_a_leader_steps_down_before_its_lease_expires_even_if_the_server_is_unresponsive(
    answers_after_s: float,
) -> None:
    settings = LeaseSettings("infra", "us", life_s=4.0, period_s=1.0)
    over, taken_at, clock = asyncio.Event(), list[float](), asyncio.get_running_loop().time
    lease = {"metadata": {"namespace": "infra", "name": "x", "resourceVersion": "1"}, "spec": {"holderIdentity": "us"}}

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method == "PUT" and not taken_at:
            taken_at.append(clock())  # from here on others count
            await asyncio.sleep(answers_after_s)
        elif request.method == "PUT":
            await over.wait()
        return web.json_response(lease)

    async with api_server(handler) as api:
        try:
            leader = Leadership(api, settings)
            await leader.acquire()
            await asyncio.wait_for(leader.keep(), 60)
            assert clock() - taken_at[0] < settings.life_s
        finally:
            over.set()


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
