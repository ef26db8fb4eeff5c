"""The operator's client of a pool's scheduler (service Admin): sends models and tenants, reads facts."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
from aegaeon_operator.reconcile.cluster.memo import Memo
from aegaeon_proto.channels import Options, open_channel
from aegaeon_proto.roles import Role
from aegaeon_proto.v1 import admin_pb2, admin_pb2_grpc, engine_pb2, gateway_pb2, model_pb2

_TIMEOUT_S = 5.0
DEMAND_S = 60.0
# The address of a lost pod does not answer until Kubernetes removes it from the Service: gRPC's defaults are 20 s for
# an attempt and up to two minutes until the next.
_RECONNECT: Options = (("grpc.min_reconnect_backoff_ms", 2000), ("grpc.max_reconnect_backoff_ms", 2000))
# A status has every model of the pool; gRPC's own limit is 4 MiB.
LINK_OPTIONS: Options = (*_RECONNECT, ("grpc.max_receive_message_length", 64 << 20))
# Time for requests of a removed or changed model to end.
_WITHDRAW_S = 60.0
# Lifetime of a report about terminating engines, which each reconcile repeats.
_ENDING_S = 20.0
_NOT_KNOWN = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.PERMISSION_DENIED)
_PHASES = {
    model_pb2.MODEL_PHASE_FETCHING: "fetching",
    model_pb2.MODEL_PHASE_CACHED: "cached",
    model_pb2.MODEL_PHASE_FAILED: "failed",
}
_NO_TRAFFIC = gateway_pb2.ModelTraffic()
_ROLES = {engine_pb2.ROLE_UNIFIED: "unified", engine_pb2.ROLE_PREFILL: "prefill", engine_pb2.ROLE_DECODE: "decode"}


class SchedulerLink:
    """A channel to a scheduler. It sends the desired state when that changed and to a new scheduler."""

    def __init__(self, target: str, certificates: dict[str, bytes]) -> None:
        self.target = target
        self._folder = tempfile.TemporaryDirectory(prefix="aegaeon-tls-")
        for name, content in certificates.items():
            (Path(self._folder.name) / name).write_bytes(content)
        self._channel = open_channel(target, Path(self._folder.name), Role.SCHEDULER, LINK_OPTIONS)
        self._admin: admin_pb2_grpc.AdminAsyncStub = admin_pb2_grpc.AdminStub(self._channel)
        self._reported: tuple[str, str] = ("", "")  # incarnation of the scheduler, mark of the desired state
        self._messages = Memo()  # parsing takes longer than all else that a change of a ModelPool costs
        self._models = Memo()

    async def exchange(self, desired: Desired, slab_bytes: int) -> SchedulerFacts:
        """Send the desired state and return the scheduler's facts. Raises KubeError when it does not answer."""
        try:
            incarnation, mark = self._reported
            if incarnation and mark != desired.mark:
                await self._report(desired, incarnation)
            status = await self._admin.Status(admin_pb2.AdminStatusRequest(), timeout=_TIMEOUT_S)
            if incarnation != status.incarnation:
                await self._report(desired, status.incarnation)
                status = await self._admin.Status(admin_pb2.AdminStatusRequest(), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise KubeError(0, f"the scheduler does not answer: {error.details()}") from error
        return facts(status, slab_bytes, self._models)

    async def tell_ending(self, engines: Collection[str]) -> None:
        """Report engines that are terminating. Raises KubeError; schedulers of older releases ignore it."""
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
        """Close the channel and delete the certificates."""
        await self._channel.close()
        self._folder.cleanup()

    async def _report(self, desired: Desired, incarnation: str) -> None:
        self._reported = ("", "")  # after an error the scheduler may have any part
        await self._send(desired)
        self._reported = (incarnation, desired.mark)

    async def _send(self, desired: Desired) -> None:
        """Send tenants before models, so that no model is open to all clients for a moment."""
        self._messages.start_pass()
        tenants = self._tenants(desired.tenants or {})
        await self._admin.SetTenants(admin_pb2.SetTenantsRequest(tenants=tenants), timeout=_TIMEOUT_S)
        known = self._messages
        models = [known.of(("model", entry["name"]), entry, partial(_spec, entry)) for entry in desired.catalog]
        engines = admin_pb2.Engines(instances=desired.engines)
        request = admin_pb2.SetCatalogRequest(
            models=models, drain_s=_WITHDRAW_S, start_s=desired.start_s, engines=engines
        )
        await self._admin.SetCatalog(request, timeout=_TIMEOUT_S)

    def _tenants(self, document: Json) -> gateway_pb2.Tenants:
        message = ParseDict({**document, "tenants": []}, gateway_pb2.Tenants())
        for entry in document.get("tenants", ()):
            message.tenants.append(self._messages.of(("tenant", entry["name"]), entry, partial(_tenant, entry)))
        return message


def _tenant(entry: Json) -> gateway_pb2.Tenant:
    return ParseDict(entry, gateway_pb2.Tenant())


def _spec(entry: Json) -> model_pb2.ModelSpec:
    return ParseDict({**entry, "tier": f"TIER_{str(entry['tier']).upper()}"}, model_pb2.ModelSpec())


def facts(status: admin_pb2.AdminStatus, slab_bytes: int, memo: Memo | None = None) -> SchedulerFacts:
    """Return a scheduler's status as facts; with a memo those of an unchanged model are the same object."""
    resident = {name for engine in status.pool.instances if engine.alive for name in engine.resident}
    traffic = {entry.model: entry for entry in status.pool.models}
    memo = memo or Memo()
    memo.start_pass()
    models: dict[str, ModelFacts] = {}
    for model in status.catalog.models:
        name = model.spec.name
        used = (name in resident, _counts(traffic.get(name, _NO_TRAFFIC)))
        # As bytes: the message would keep all of its status in memory.
        inputs = (model.SerializeToString(deterministic=True), *used)
        models[name] = memo.of(name, inputs, partial(_model, model, *used))
    shapes = {model.footprint.kv_shape: model.footprint.kv_block_bytes for model in status.catalog.models}
    waiting = (sequence for sequence in status.pool.sequences if sequence.state == "queued")
    cached = {name for name, model in models.items() if model.phase == "cached"}
    return SchedulerFacts(
        incarnation=status.incarnation,
        models=models,
        engines=tuple(_engine(engine, shapes, slab_bytes) for engine in status.pool.instances),
        oldest_wait_s=max((sequence.age_s for sequence in waiting if sequence.model in cached), default=0.0),
        open_requests=len(status.pool.sequences),
        ended=sum(entry.requests for entry in status.pool.models),
        refused={note.model: note.reason for note in status.refused},
        changing={note.model: note.reason for note in status.changing},
        gateways=frozenset(link.gateway for link in status.gateways if link.attached),
        redis_away={link.gateway: link.redis_away for link in status.gateways if link.attached and link.redis_away},
        suspects=tuple(
            SuspectFacts(device.instance, device.node, device.uuid, device.error) for device in status.pool.suspects
        ),
        standby=status.standby,
        term=status.term,
        waiting=_waiting(status.pool.sequences, traffic) if _reports_turns(status.pool) else {},
        worked_s=min((model.worked_s for model in status.pool.models if model.HasField("worked_s")), default=None),
        answered_at=int(max((model.answered_at for model in status.pool.models), default=0.0)),
    )


def _reports_turns(pool: gateway_pb2.PoolStatus) -> bool:
    """Return whether a scheduler reports turns; without them, for older releases, progress is unknown."""
    return any(engine.HasField("turn_s") for engine in pool.instances)


def _waiting(
    sequences: Iterable[gateway_pb2.SequenceStatus], traffic: Mapping[str, gateway_pb2.ModelTraffic]
) -> dict[str, Wait]:
    """Return the waits by model, without sequences that lost their gateway."""
    oldest: dict[str, float] = {}
    for sequence in sequences:
        if sequence.state != "lost":
            oldest[sequence.model] = max(sequence.age_s, oldest.get(sequence.model, 0.0))
    counted = ((name, age_s, traffic.get(name, gateway_pb2.ModelTraffic())) for name, age_s in oldest.items())
    return {name: Wait(age_s, at.worked_s if at.HasField("worked_s") else None) for name, age_s, at in counted}


class _Counts(NamedTuple):
    """Counts of a model's traffic, without the time since its last step, which differs in each status."""

    queued: int
    running: int
    output_tokens: int
    tokens_on_time: int
    busy_s: float


def _counts(traffic: gateway_pb2.ModelTraffic) -> _Counts:
    return _Counts(traffic.queued, traffic.running, traffic.output_tokens, traffic.tokens_on_time, traffic.busy_s)


def _model(status: gateway_pb2.ModelStatus, resident: bool, counts: _Counts) -> ModelFacts:
    return ModelFacts(
        phase="absent" if status.absent else _PHASES.get(status.phase, ""),
        apart=status.apart,
        roles=_roles(status.roles),
        absent_roles=_roles(status.absent_roles),
        reason=status.reason,
        resident=resident,
        weight_bytes=status.footprint.weight_bytes,
        bytes_done=status.bytes_done,
        bytes_total=status.bytes_total,
        bytes_per_s=status.bytes_per_s,
        remaining_s=status.remaining_s,
        **counts._asdict(),
    )


def _roles(roles: Iterable[engine_pb2.Role.ValueType]) -> frozenset[str]:
    return frozenset(_ROLES[role] for role in roles if role in _ROLES)


def _engine(status: gateway_pb2.InstanceStatus, shapes: dict[str, int], slab_bytes: int) -> EngineFacts:
    """Return an engine's facts. KV use: blocks in use as a share of these and all free memory."""
    used = sum(shape.used_blocks * shapes.get(shape.kv_shape, 0) for shape in status.memory.shapes)
    free = sum(shape.free_blocks * shapes.get(shape.kv_shape, 0) for shape in status.memory.shapes)
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
