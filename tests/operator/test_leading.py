"""The operator leads whatever its loop is busy with, and lets go at once when it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from operator_memory import At, Memory, kubeconfig, served

from aegaeon_kube.lease import LeaseSettings
from aegaeon_operator.kube.leading import leading

AT = At("Lease", "infra", "aegaeon-operator")
LIFE_S = 2.0


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    """An API server that the test's own loop does not hold up."""
    found, ready, ended = Memory(), threading.Event(), threading.Event()

    async def serve() -> None:
        async with served(found) as url:
            monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, url)))
            ready.set()
            await asyncio.to_thread(ended.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    yield found
    ended.set()
    thread.join()


def holder(memory: Memory) -> str:
    return str(memory.objects[AT]["spec"]["holderIdentity"])


async def test_a_loop_that_is_busy_for_longer_than_the_lease_lives_keeps_the_lead(memory: Memory) -> None:
    settings = LeaseSettings("infra", "one", life_s=LIFE_S, period_s=0.2)
    async with leading(settings, lambda *_: None) as lead:
        await asyncio.wait_for(lead.won.wait(), 60)
        renewed = memory.objects[AT]["spec"]["renewTime"]
        time.sleep(1.5 * LIFE_S)  # noqa: ASYNC251 - a look that computes
        await asyncio.sleep(0)
        assert not lead.over.is_set()
        assert memory.objects[AT]["spec"]["renewTime"] > renewed
        assert holder(memory) == "one"
    assert holder(memory) == "", "the next one need not wait"


async def test_who_cannot_renew_leads_no_more(memory: Memory) -> None:
    async with leading(LeaseSettings("infra", "one", life_s=LIFE_S, period_s=0.2), lambda *_: None) as lead:
        await asyncio.wait_for(lead.won.wait(), 60)
        memory.failing = lambda call: 503 if call.at.kind == "Lease" else 0
        await asyncio.wait_for(lead.over.wait(), 60)


async def test_who_waits_for_the_lead_ends_when_asked(memory: Memory) -> None:
    settings = {name: LeaseSettings("infra", name, life_s=60, period_s=0.2) for name in ("one", "two")}
    async with leading(settings["one"], lambda *_: None) as first:
        await asyncio.wait_for(first.won.wait(), 60)
        async with leading(settings["two"], lambda *_: None) as second:
            await asyncio.sleep(0.5)  # it could take the Lease in this time
            assert not second.won.is_set()
        assert holder(memory) == "one"
