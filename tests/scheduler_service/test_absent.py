"""A model that is on no node: gateways submit, and an engine is sent Fetch, for requests or for a change of a name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from scheduler_service.test_rollouts import CACHED, FETCHING, FOOTPRINT, NEW, OLD, STAGED, catalog_with, change, command

from aegaeon_proto.v1 import gateway_pb2, model_pb2
from aegaeon_scheduler.config import core_config, load_config
from aegaeon_scheduler.core.scheduler import Scheduler


@pytest.fixture
def core(configured: Any) -> Scheduler:
    """The real one."""
    return Scheduler(core_config(load_config(configured())))


def state(name: str, identity: str, **fields: Any) -> model_pb2.ModelState:
    return model_pb2.ModelState(model=name, identity=identity, **{"phase": FETCHING, **fields})


async def status_with(gateway: Any, **fields: Any) -> gateway_pb2.ModelStatus:
    """The first status of tiny-a that has these."""
    async with asyncio.timeout(30):
        while True:
            models = (await gateway.next("catalog")).models
            model = next(one for one in models if one.spec.name == "tiny-a")
            if all(getattr(model, name) == value for name, value in fields.items()):
                return model


async def test_a_request_for_a_model_on_no_node_has_it_fetched_and_is_served_when_it_is_there(
    serve: Any, core: Scheduler
) -> None:
    async with serve(core) as stack:
        gateway = await stack.gateway()
        sidecar = await stack.sidecar(models=[state("tiny-a", OLD.identity, absent=True)])
        absent = await status_with(gateway, absent=True)
        assert (absent.phase, absent.wait) == (FETCHING, False)
        await gateway.submit("r1", identity=OLD.identity)
        fetch = (await command(sidecar, "fetch")).fetch
        assert (fetch.model, fetch.identity) == ("tiny-a", OLD.identity)
        coming = state("tiny-a", OLD.identity, on_demand=True, remaining_s=9.0, reason="1 models are fetched before it")
        await sidecar.report(model=coming)
        seen = await status_with(gateway, absent=False, remaining_s=9.0)
        assert (seen.wait, seen.reason) == (False, "1 models are fetched before it")
        await sidecar.report(model=state("tiny-a", OLD.identity, phase=CACHED, footprint=FOOTPRINT))
        assert (await command(sidecar, "load")).load.model == "tiny-a"
        core.check()


async def test_what_a_name_is_to_stand_for_is_fetched_where_it_is_absent(serve: Any, core: Scheduler) -> None:
    async with serve(core) as stack:
        sidecar = await stack.sidecar(models=[state("tiny-a", OLD.identity, phase=CACHED, footprint=FOOTPRINT)])
        await change(stack, NEW)
        await catalog_with(sidecar, "tiny-a", STAGED)
        await sidecar.report(model=state(STAGED, NEW.identity, absent=True))
        fetch = (await command(sidecar, "fetch")).fetch
        assert (fetch.model, fetch.identity) == (STAGED, NEW.identity)
