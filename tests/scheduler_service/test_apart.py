"""What gateways and people see of a model that no two engines can serve together, with the real core."""

from __future__ import annotations

from typing import Any

import pytest
from scheduler_service.test_recovery import CACHED

from aegaeon_proto.v1 import engine_pb2, gateway_pb2, model_pb2
from aegaeon_scheduler.core.config import SchedulerConfig
from aegaeon_scheduler.core.scheduler import Scheduler

FETCHING = model_pb2.ModelState(model="tiny-a", phase=model_pb2.MODEL_PHASE_FETCHING)


@pytest.fixture
def brain() -> Scheduler:
    """The real one."""
    return Scheduler(SchedulerConfig(hold_s=0.2))


async def next_of_a(gateway: Any) -> gateway_pb2.ModelStatus:
    """What the next catalog says of it."""
    catalog = await gateway.next("catalog")
    return next(one for one in catalog.models if one.spec.name == "tiny-a")


async def next_of(sidecar: Any, kind: str) -> engine_pb2.Command:
    """The next command of this kind."""
    while (command := await sidecar.next()).WhichOneof("body") != kind:
        pass
    return command


async def test_a_model_counts_as_served_while_a_pair_of_engines_that_can_exchange_kv_has_it(
    serve: Any, brain: Any
) -> None:
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        await stack.sidecar("p", role=engine_pb2.ROLE_PREFILL, models=[CACHED])
        alone = await next_of_a(gateway)
        assert (alone.phase, alone.wait, alone.apart) == (model_pb2.MODEL_PHASE_UNSPECIFIED, False, True)
        assert alone.reason.startswith("p of node n prefills it, and no engine that can take its KV over")
        await gateway.submit()
        refused = await gateway.next("rejected")
        assert refused.code == gateway_pb2.REJECT_CODE_UNSERVED
        assert refused.reason == f"tiny-a is not served: {alone.reason}"
        assert refused.retry_after_s > 0

        decoder = await stack.sidecar("d", role=engine_pb2.ROLE_DECODE, models=[FETCHING])
        fetching = await next_of_a(gateway)
        assert (fetching.phase, fetching.wait, fetching.apart) == (model_pb2.MODEL_PHASE_FETCHING, True, True)
        await decoder.report(model=CACHED)
        served = await next_of_a(gateway)
        assert (served.phase, served.wait, served.apart) == (model_pb2.MODEL_PHASE_CACHED, False, False)
        roles = [engine_pb2.ROLE_PREFILL, engine_pb2.ROLE_DECODE]
        assert [list(model.roles) for model in (alone, fetching, served)] == [[], [], roles]
        await decoder.report(draining=engine_pb2.Draining())
        drained = await next_of_a(gateway)
        assert (drained.apart, list(drained.roles)) == (True, [])
        async for status in stack.status():
            of_a = next(one for one in status.models if one.model == "tiny-a")
            assert (of_a.phase, of_a.reason) == (alone.phase, alone.reason)


async def test_a_model_whose_load_failed_too_often_has_no_engine_for_gateways(serve: Any, brain: Any) -> None:
    async with serve(brain) as stack:
        sidecar = await stack.sidecar("u", models=[CACHED])
        gateway = await stack.gateway()
        await gateway.submit()
        for _ in range(brain.config.max_failures + 1):
            load, turn = [await next_of(sidecar, kind) for kind in ("load", "turn")]
            await sidecar.report(failed=engine_pb2.Failed(id=load.id, reason="a shard is truncated"))
            await sidecar.report(skipped=engine_pb2.Skipped(id=turn.id, because=load.id))
        assert (await gateway.next("rejected")).code == gateway_pb2.REJECT_CODE_MODEL_FAILED
        failed = await next_of_a(gateway)
        assert (failed.phase, list(failed.roles)) == (model_pb2.MODEL_PHASE_CACHED, [])  # as its engine reports it


async def test_roles_that_fetch_a_model_on_demand_are_known_beside_those_that_have_it(serve: Any, brain: Any) -> None:
    """A change of roles ends the former engines for the others' sake only when it knows that they would fetch it."""
    absent = model_pb2.ModelState(model="tiny-a", phase=model_pb2.MODEL_PHASE_FETCHING, absent=True)
    async with serve(brain) as stack:
        gateway = await stack.gateway()
        await stack.sidecar("u", role=engine_pb2.ROLE_UNIFIED, models=[CACHED])
        alone = await next_of_a(gateway)
        prefill = await stack.sidecar("p", role=engine_pb2.ROLE_PREFILL, models=[absent])
        both = await next_of_a(gateway)
        assert both.phase == model_pb2.MODEL_PHASE_CACHED
        unified = [engine_pb2.ROLE_UNIFIED]
        assert [list(model.roles) for model in (alone, both)] == [unified, unified]
        assert [list(model.absent_roles) for model in (alone, both)] == [[], [engine_pb2.ROLE_PREFILL]]
        ahead = await stack.sidecar("q", role=engine_pb2.ROLE_PREFILL, models=[FETCHING])
        assert list((await next_of_a(gateway)).absent_roles) == [], "another engine of the role is about to have it"
        await ahead.report(draining=engine_pb2.Draining())
        assert list((await next_of_a(gateway)).absent_roles) == [engine_pb2.ROLE_PREFILL]
        await prefill.report(draining=engine_pb2.Draining())
        assert list((await next_of_a(gateway)).absent_roles) == []
