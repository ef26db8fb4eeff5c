"""The pool as people see it: the core's snapshot, with what the service knows of models and streams."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Container, Mapping, Sequence

from aegaeon_proto.codec.memory import memory_to
from aegaeon_proto.codec.nouns import ROLES, seq_to
from aegaeon_proto.v1 import engine_pb2, gateway_pb2
from aegaeon_scheduler.core.domain import InstanceId, ModelName
from aegaeon_scheduler.core.snapshot import InstanceView, ModelView, SequenceView, Snapshot
from aegaeon_scheduler.service.catalog import Catalog
from aegaeon_scheduler.service.driver import Brain
from aegaeon_scheduler.service.lag import SchedulerLoad


class StatusView:
    """Takes pictures of the pool. `connected` holds the instances whose stream stands, `suspects` gives devices that
    engines leave alone, `load` is the process's."""

    def __init__(
        self,
        pool: str,
        brain: Brain,
        clock: Callable[[], float],
        catalog: Catalog,
        connected: Container[InstanceId],
        suspects: Callable[[], Sequence[engine_pb2.SuspectDevice]],
        load: Callable[[], SchedulerLoad],
    ) -> None:
        self._pool = pool
        self._brain = brain
        self._clock = clock
        self._catalog = catalog
        self._connected = connected
        self._suspects = suspects
        self._load = load
        self._started = clock()
        self._epoch = time.time() - self._started  # once: what is said of one moment does not vary

    def snapshot(self) -> Snapshot:
        """The core's picture."""
        return self._brain.snapshot(self._clock())

    async def status(self) -> gateway_pb2.PoolStatus:
        """The whole picture, as it goes over the wire. The loop copies the tables; the message is made beside it."""
        core = self.snapshot()
        models = {
            view.model: self._catalog.model(view.model) for view in core.models if view.model in self._catalog.specs
        }
        attached = frozenset(view.instance for view in core.instances if view.instance in self._connected)
        load = self._load()
        status = gateway_pb2.PoolStatus(
            pool=self._pool,
            uptime_s=core.now - self._started,
            policy=core.policy,
            fetching=self._catalog.fetching(),
            adapters=self._catalog.adapters(),
            suspects=self._suspects(),
            lag_s=load.lag_s,
            intake=load.waiting,
            refused=load.refused,
        )
        return await asyncio.to_thread(_complete, status, core, models, attached, self._epoch)


def _complete(
    status: gateway_pb2.PoolStatus,
    core: Snapshot,
    models: Mapping[ModelName, gateway_pb2.ModelStatus],
    attached: Container[InstanceId],
    epoch: float,
) -> gateway_pb2.PoolStatus:
    """`epoch`: Unix time when the scheduler's clock was 0."""
    status.instances.extend(_instance(view, view.instance in attached) for view in core.instances)
    for view in core.models:
        if view.model in models:
            status.models.append(_model(view, models[view.model], core.now, epoch))
    status.sequences.extend(_sequence(view) for view in core.sequences)
    return status


def _instance(view: InstanceView, alive: bool) -> gateway_pb2.InstanceStatus:
    return gateway_pb2.InstanceStatus(
        instance=view.instance,
        role=ROLES[view.role],
        device=view.device,
        alive=alive,
        resident=view.resident,
        running=view.running,
        loading=view.loading,
        slabs=view.slabs,
        memory=memory_to(view.memory),
        sequences=view.sequences,
        switches=view.switches,
        loads=view.loads,
        busy_s=view.busy_s,
        stall_s=view.stall_s,
        switch_s=view.switch_s,
        reason=view.reason,
        draining=view.draining,
        turn_s=view.turn_s,
        first_steps=view.first_steps,
    )


def _model(view: ModelView, state: gateway_pb2.ModelStatus, now: float, epoch: float) -> gateway_pb2.ModelTraffic:
    return gateway_pb2.ModelTraffic(
        model=view.model,
        phase=state.phase,
        reason=state.reason,
        queued=view.queued,
        running=view.running,
        requests=view.ended,
        output_tokens=view.output_tokens,
        switches=view.loads,
        busy_s=view.busy_s,
        stall_s=view.stall_s,
        switch_s=view.switch_s,
        tokens_on_time=view.tokens_on_time,
        bytes_done=state.bytes_done,
        bytes_total=state.bytes_total,
        bytes_per_s=state.bytes_per_s,
        remaining_s=state.remaining_s,
        absent=state.absent,
        worked_s=now - view.worked_at if math.isfinite(view.worked_at) else None,
        answered_at=epoch + view.answered_at if math.isfinite(view.answered_at) else 0.0,
    )


def _sequence(view: SequenceView) -> gateway_pb2.SequenceStatus:
    return gateway_pb2.SequenceStatus(
        seq=seq_to(view.seq),
        model=view.model,
        instance=view.instance,
        state=view.state,
        prompt_tokens=view.prompt_tokens,
        output_tokens=view.output_tokens,
        age_s=view.age_s,
    )
