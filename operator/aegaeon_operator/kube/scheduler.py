"""A pool's scheduler as the operator speaks to it: models and tenants down, facts up (service Admin)."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import grpc
from google.protobuf.json_format import ParseDict

from aegaeon_kube.errors import KubeError
from aegaeon_operator.reconcile.cluster.desired import Desired
from aegaeon_operator.reconcile.cluster.facts import (
    EngineFacts,
    Json,
    ModelFacts,
    SchedulerFacts,
    SuspectFacts,
    Wait,
)
from aegaeon_proto.channels import Options, open_channel
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import admin_pb2, admin_pb2_grpc, engine_pb2, gateway_pb2, model_pb2

_TIMEOUT_S = 5.0
DEMAND_S = 60.0
# The address of a lost pod answers nothing until Kubernetes takes it out of the Service: gRPC would wait for 20 s
# each time, and up to two minutes before the next attempt.
_RECONNECT: Options = (("grpc.min_reconnect_backoff_ms", 2000), ("grpc.max_reconnect_backoff_ms", 2000))
# A status has every model of the pool; gRPC's own limit is 4 MiB.
LINK_OPTIONS: Options = (*_RECONNECT, ("grpc.max_receive_message_length", 64 << 20))
# Requests of a model that was taken away, or changes, have so long to end.
_WITHDRAW_S = 60.0
# What is said of engines that end counts for so long: it is said again at every look.
_ENDING_S = 20.0
_NOT_KNOWN = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED)
_PHASES = {
    model_pb2.MODEL_PHASE_FETCHING: "fetching",
    model_pb2.MODEL_PHASE_CACHED: "cached",
    model_pb2.MODEL_PHASE_FAILED: "failed",
}
_ROLES = {engine_pb2.ROLE_UNIFIED: "unified", engine_pb2.ROLE_PREFILL: "prefill", engine_pb2.ROLE_DECODE: "decode"}


class SchedulerLink:
    """One channel to one scheduler. State is sent again when it changed, or when the scheduler is a new one."""

    def __init__(self, target: str, certificates: dict[str, bytes]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="aegaeon-tls-")
        for name, content in certificates.items():
            (Path(self._folder.name) / name).write_bytes(content)
        self._channel = open_channel(target, Path(self._folder.name), Role.SCHEDULER, LINK_OPTIONS)
        self._admin: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(self._channel)
        self._reported: tuple[str, str] = ("", "")

    async def exchange(self, wanted: Desired, slab_bytes: int) -> SchedulerFacts:
        """Tell it what it should know, and learn how it stands. Raises KubeError when it does not answer."""
        try:
            status = await self._admin.Status(admin_pb2.AdminStatusRequest(), timeout=_TIMEOUT_S)
            if self._reported != (status.incarnation, wanted.mark):
                self._reported = ("", "")  # of what fails half-way it may have taken any part
                await self._tell(wanted)
                self._reported = (status.incarnation, wanted.mark)
                status = await self._admin.Status(admin_pb2.AdminStatusRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise KubeError(0, f"the scheduler does not answer: {error.details()}") from error
        return facts(status, slab_bytes)

    async def tell_ending(self, engines: Collection[str]) -> None:
        """These are about to end. Raises KubeError; a scheduler of an older release takes no notice."""
        request = admin_pb2.SetEndingRequest(instances=engines, for_s=_ENDING_S)
        try:
            await self._admin.SetEnding(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() not in _NOT_KNOWN:
                raise KubeError(0, f"the scheduler does not answer: {error.details()}") from error

    async def demand(self) -> bool:
        """Wait until a request is open; False when the connection to the scheduler is lost."""
        while True:
            try:
                await self._admin.AwaitDemand(admin_pb2.AwaitDemandRequest(), timeout=DEMAND_S)
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    return False
            else:
                return True

    async def close(self) -> None:
        """End the channel and forget the certificates."""
        await self._channel.close()
        self._folder.cleanup()

    async def _tell(self, wanted: Desired) -> None:
        """Tenants first: a model is never open for a moment that should not be."""
        tenants = ParseDict(wanted.tenants or {}, gateway_pb2.Tenants())
        await self._admin.SetTenants(admin_pb2.SetTenantsRequest(tenants=tenants), timeout=_TIMEOUT_S)
        models = [_spec(entry) for entry in wanted.catalog]
        engines = admin_pb2.Engines(instances=wanted.engines)
        request = admin_pb2.SetCatalogRequest(
            models=models, drain_s=_WITHDRAW_S, start_s=wanted.start_s, engines=engines
        )
        await self._admin.SetCatalog(request, timeout=_TIMEOUT_S)


def _spec(entry: Json) -> model_pb2.ModelSpec:
    return ParseDict({**entry, "tier": f"TIER_{str(entry['tier']).upper()}"}, model_pb2.ModelSpec())


def facts(status: admin_pb2.AdminStatus, slab_bytes: int) -> SchedulerFacts:
    """What decisions are made from."""
    resident = {name for one in status.pool.instances if one.alive for name in one.resident}
    traffic = {one.model: one for one in status.pool.models}
    models = {
        one.spec.name: _model(one, traffic.get(one.spec.name, gateway_pb2.ModelTraffic()), one.spec.name in resident)
        for one in status.catalog.models
    }
    shapes = {one.footprint.kv_shape: one.footprint.kv_block_bytes for one in status.catalog.models}
    waiting = (one for one in status.pool.sequences if one.state == "queued")
    cached = {name for name, one in models.items() if one.phase == "cached"}
    return SchedulerFacts(
        incarnation=status.incarnation,
        models=models,
        engines=tuple(_engine(one, shapes, slab_bytes) for one in status.pool.instances),
        oldest_wait_s=max((one.age_s for one in waiting if one.model in cached), default=0.0),
        open_requests=len(status.pool.sequences),
        ended=sum(one.requests for one in status.pool.models),
        refused={note.model: note.reason for note in status.refused},
        changing={note.model: note.reason for note in status.changing},
        gateways=frozenset(link.gateway for link in status.gateways if link.attached),
        redis_away={one.gateway: one.redis_away for one in status.gateways if one.attached and one.redis_away},
        suspects=tuple(
            SuspectFacts(device.instance, device.node, device.uuid, device.error) for device in status.pool.suspects
        ),
        standby=status.standby,
        term=status.term,
        waiting=_waiting(status.pool.sequences, traffic) if _tells_turns(status.pool) else {},
        worked_s=min((model.worked_s for model in status.pool.models if model.HasField("worked_s")), default=None),
        answered_at=int(max((model.answered_at for model in status.pool.models), default=0.0)),
    )


def _tells_turns(pool: gateway_pb2.PoolStatus) -> bool:
    """A scheduler of an older release says nothing of them, so its silences are none."""
    return any(engine.HasField("turn_s") for engine in pool.instances)


def _waiting(
    sequences: Iterable[gateway_pb2.SequenceStatus], traffic: Mapping[str, gateway_pb2.ModelTraffic]
) -> dict[str, Wait]:
    """By model; a sequence whose gateway is gone waits for that."""
    oldest: dict[str, float] = {}
    for sequence in sequences:
        if sequence.state != "lost":
            oldest[sequence.model] = max(sequence.age_s, oldest.get(sequence.model, 0.0))
    counted = ((name, age_s, traffic.get(name, gateway_pb2.ModelTraffic())) for name, age_s in oldest.items())
    return {name: Wait(age_s, at.worked_s if at.HasField("worked_s") else None) for name, age_s, at in counted}


def _model(status: gateway_pb2.ModelStatus, traffic: gateway_pb2.ModelTraffic, resident: bool) -> ModelFacts:
    return ModelFacts(
        phase="absent" if status.absent else _PHASES.get(status.phase, ""),
        apart=status.apart,
        roles=frozenset(_ROLES[role] for role in status.roles if role in _ROLES),
        reason=status.reason,
        resident=resident,
        queued=traffic.queued,
        running=traffic.running,
        output_tokens=traffic.output_tokens,
        tokens_on_time=traffic.tokens_on_time,
        busy_s=traffic.busy_s,
        weight_bytes=status.footprint.weight_bytes,
        bytes_done=status.bytes_done,
        bytes_total=status.bytes_total,
        bytes_per_s=status.bytes_per_s,
        remaining_s=status.remaining_s,
    )


def _engine(status: gateway_pb2.InstanceStatus, shapes: dict[str, int], slab_bytes: int) -> EngineFacts:
    """KV use: blocks that sequences hold, against those and everything that is free."""
    used = sum(one.used_blocks * shapes.get(one.kv_shape, 0) for one in status.memory.shapes)
    free = sum(one.free_blocks * shapes.get(one.kv_shape, 0) for one in status.memory.shapes)
    free += status.memory.slabs_free * slab_bytes
    return EngineFacts(
        name=status.instance,
        role=_ROLES.get(status.role, "unified"),
        attached=status.alive and not status.draining,
        sequences=status.sequences,
        kv_used=used / (used + free) if used + free else 0.0,
        outside_reserved_bytes=status.memory.outside.reserved_bytes,
        outside_peak_bytes=status.memory.outside.peak_bytes,
        turn_of=status.running,
        turn_s=status.turn_s,
        prepares=_prepares(status),
    )


def _prepares(status: gateway_pb2.InstanceStatus) -> tuple[str, ...]:
    loading = tuple(status.loading.split(", ")) if status.loading else ()
    return (*loading, status.running) if status.first_steps else loading
