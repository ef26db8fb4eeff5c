"""The autoscaler of a pool on one machine: what the scheduler says becomes engines that run, or do not."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence

import grpc

from aegaeon_operator.kube.scheduler import DEMAND_S, LINK_OPTIONS, facts
from aegaeon_operator.podrunner.child import Reporter
from aegaeon_operator.podrunner.runner import PodRunner
from aegaeon_operator.reconcile.cluster.facts import SchedulerFacts
from aegaeon_operator.reconcile.cluster.scaler import Scaler
from aegaeon_operator.reconcile.local import Engine, engines
from aegaeon_operator.spec.resources import GpuPoolSpec
from aegaeon_proto.channels import open_channel
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import admin_pb2, admin_pb2_grpc

_LOOK_S = 1.0
_ANSWER_S = 5.0


class LocalScaling:
    """Owner of how many engines of each role run. `target`: the scheduler's Admin."""

    def __init__(self, spec: GpuPoolSpec, runner: PodRunner, target: str, reporter: Reporter) -> None:
        self._spec = spec
        self._runner = runner
        self._target = target
        self._reporter = reporter
        self._scaler = Scaler()
        self._engines: Sequence[Engine] = tuple(engines(spec))
        self._running = {one.name for one in self._engines if not one.on_demand}

    async def run(self) -> None:
        """Until cancelled. A scheduler that is being started again is waited for."""
        async with open_channel(self._target, None, Role.SCHEDULER, LINK_OPTIONS) as channel:
            admin: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(channel)
            while True:
                try:
                    await self._look(admin)
                    await self._pause(admin)
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(_LOOK_S)

    async def _look(self, admin: admin_pb2_grpc.AdminAsyncStub) -> None:
        status = await admin.Status(admin_pb2.AdminStatusRequest(), timeout=_ANSWER_S)
        await self._scale(facts(status, self._spec.memory.slab_size))

    async def _pause(self, admin: admin_pb2_grpc.AdminAsyncStub) -> None:
        """Until the next poll; at zero engines, until the first request."""
        if self._running:
            await asyncio.sleep(_LOOK_S)
            return
        try:
            await admin.AwaitDemand(admin_pb2.AwaitDemandRequest(), timeout=DEMAND_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise

    async def _scale(self, seen: SchedulerFacts) -> None:
        there = Counter(one.role for one in self._engines if one.name in self._running)
        counts = {role: there[role] for role in self._spec.roles}
        wanted = self._scaler.step(self._spec, counts, seen, time.monotonic())
        for role, count in wanted.items():
            mine = [one.name for one in self._engines if one.role == role]
            for name in mine[:count]:
                self._begin(name)
            for name in mine[count:]:
                await self._end(name)

    def _begin(self, name: str) -> None:
        if name not in self._running:
            self._running.add(name)
            self._reporter.event(name, "starts, since requests wait")
            self._runner.begin(name)

    async def _end(self, name: str) -> None:
        if name in self._running:
            self._reporter.event(name, "ends, since the rest has little to do")
            await self._runner.end(name)
            self._running.discard(name)
