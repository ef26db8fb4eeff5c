"""The autoscaler of `aegaeon up`, with a real scheduler and real child processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count

from operator_objects import gpu_pool
from operator_requests import submitted
from tests.operator.test_podrunner import Heard, eventually, running

from aegaeon_operator.podrunner import LocalScaling, RunFolder
from aegaeon_operator.reconcile import DesiredPod
from aegaeon_operator.spec.resources import GpuPoolSpec
from aegaeon_proto.channels import plain_channel
from aegaeon_scheduler.config import ModelEntry, SchedulerConfig, SourceEntry, core_config
from aegaeon_scheduler.core.scheduler import Scheduler
from aegaeon_scheduler.service.server import Service

AWAY_S = 17.5  # gRPC alone tries again after 16 s, and then after 26 s


async def test_the_first_request_starts_an_engine_also_behind_a_scheduler_that_was_away_for_long(
    folder: RunFolder, make_pod: Callable[..., DesiredPod]
) -> None:
    listen, admin = (f"unix:{folder.sockets}/{name}.sock" for name in ("scheduler", "admin"))
    model = ModelEntry(name="m", source=SourceEntry(directory="/m"), ttft_s=1, tbt_s=1)
    config = SchedulerConfig(listen=listen, admin_listen=admin, models=(model,), start_s=60)
    service = Service(config, Scheduler(core_config(config)), time.monotonic, count(1000, 1000).__next__)
    spec = GpuPoolSpec.model_validate(gpu_pool()["spec"] | {"engines": {"replicas": 0, "min": 0, "max": 1}})
    heard, engine = Heard(), replace(make_pod("engine-0"), on_demand=True)
    async with running(folder, engine, heard=heard) as runner:
        scaling = asyncio.create_task(LocalScaling(spec, runner, admin, heard).run())
        await asyncio.sleep(AWAY_S)  # so long that gRPC's own pauses have grown
        await service.start()
        try:
            async with plain_channel(listen) as channel:
                call = await submitted(channel, "m")
                await eventually(lambda: "engine-0" in runner.pids, within_s=5.0)
                call.cancel()
        finally:
            scaling.cancel()
            with suppress(asyncio.CancelledError):
                await scaling
            await service.stop()
