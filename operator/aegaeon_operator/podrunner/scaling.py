"""The autoscaler of a pool on one machine: starts and stops engines by the scheduler's load."""

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
    """The owner of the number of running engines by role. `target`: the scheduler's Admin."""

    def __init__(self, spec: GpuPoolSpec, runner: PodRunner, target: str, reporter: Reporter) -> None:
        self._spec = spec
        self._runner = runner
        self._target = target
        self._reporter = reporter
        self._scaler = Scaler()
        self._engines: Sequence[Engine] = tuple(engines(spec))
        self._running = {engine.name for engine in self._engines if not engine.on_demand}

    async def run(self) -> None:
        """Scale until cancelled; wait while the scheduler is being restarted."""
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
        """Wait for the next poll; without engines, for the first request."""
        if self._running:
            await asyncio.sleep(_LOOK_S)
            return
        try:
            await admin.AwaitDemand(admin_pb2.AwaitDemandRequest(), timeout=DEMAND_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise

    async def _scale(self, facts: SchedulerFacts) -> None:
        running = Counter(engine.role for engine in self._engines if engine.name in self._running)
        counts = {role: running[role] for role in self._spec.roles}
        desired = self._scaler.step(self._spec, counts, facts, time.monotonic())
        for role, count in desired.items():
            names = [engine.name for engine in self._engines if engine.role == role]
            for name in names[:count]:
                self._begin(name)
            for name in names[count:]:
                await self._end(name)

    def _begin(self, name: str) -> None:
        if name not in self._running:
            self._running.add(name)
            self._reporter.event(name, "starting, since requests wait")
            self._runner.begin(name)

    async def _end(self, name: str) -> None:
        if name in self._running:
            self._reporter.event(name, "stopping, since the load is low")
            await self._runner.end(name)
            self._running.discard(name)
