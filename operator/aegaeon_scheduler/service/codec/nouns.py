"""Enumerations, ids, memory and footprints, from the wire to the core and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeVar

from aegaeon_proto.pooling import Task
from aegaeon_proto.v1 import engine_pb2, gateway_pb2, model_pb2
from aegaeon_scheduler.core.domain import (
    FailureKind,
    Finish,
    Footprint,
    Held,
    KvShape,
    Memory,
    ModelName,
    OutsideSlabs,
    Phase,
    Place,
    PrefixReuse,
    RejectCode,
    Role,
    SeqId,
    ShapeMemory,
    Terms,
    Tier,
)
from aegaeon_scheduler.errors import ProtocolError

ROLES: Mapping[int, Role] = {
    engine_pb2.ROLE_UNIFIED: Role.UNIFIED,
    engine_pb2.ROLE_PREFILL: Role.PREFILL,
    engine_pb2.ROLE_DECODE: Role.DECODE,
}
_ROLE_CODES: Mapping[Role, engine_pb2.Role.ValueType] = {
    Role.UNIFIED: engine_pb2.ROLE_UNIFIED,
    Role.PREFILL: engine_pb2.ROLE_PREFILL,
    Role.DECODE: engine_pb2.ROLE_DECODE,
}
PLACES: Mapping[int, Place] = {
    engine_pb2.KV_PLACE_NONE: Place.NONE,
    engine_pb2.KV_PLACE_DEVICE: Place.DEVICE,
    engine_pb2.KV_PLACE_HOST: Place.HOST,
}
PHASES: Mapping[int, Phase] = {
    model_pb2.MODEL_PHASE_FETCHING: Phase.FETCHING,
    model_pb2.MODEL_PHASE_CACHED: Phase.CACHED,
    model_pb2.MODEL_PHASE_FAILED: Phase.FAILED,
}
TIERS: Mapping[model_pb2.Tier.ValueType, Tier] = {
    model_pb2.TIER_BATCH: Tier.BATCH,
    model_pb2.TIER_STANDARD: Tier.STANDARD,
    model_pb2.TIER_INTERACTIVE: Tier.INTERACTIVE,
}
FINISHES: Mapping[int, Finish] = {
    model_pb2.FINISH_REASON_STOP: Finish.STOP,
    model_pb2.FINISH_REASON_LENGTH: Finish.LENGTH,
    model_pb2.FINISH_REASON_ERROR: Finish.ERROR,
}
FAILURES: Mapping[int, FailureKind] = {
    engine_pb2.FAILURE_KIND_NO_MEMORY: FailureKind.NO_MEMORY,
    engine_pb2.FAILURE_KIND_UNKNOWN: FailureKind.UNKNOWN,
    engine_pb2.FAILURE_KIND_STALE: FailureKind.STALE,
    engine_pb2.FAILURE_KIND_CANCELLED: FailureKind.CANCELLED,
    engine_pb2.FAILURE_KIND_ENGINE: FailureKind.ENGINE,
    engine_pb2.FAILURE_KIND_INVALID: FailureKind.INVALID,
    engine_pb2.FAILURE_KIND_NOT_FINITE: FailureKind.NOT_FINITE,
}
REJECTS: Mapping[RejectCode, gateway_pb2.RejectCode.ValueType] = {
    RejectCode.UNKNOWN_MODEL: gateway_pb2.REJECT_CODE_UNKNOWN_MODEL,
    RejectCode.MODEL_FAILED: gateway_pb2.REJECT_CODE_MODEL_FAILED,
    RejectCode.OVERLOADED: gateway_pb2.REJECT_CODE_OVERLOADED,
    RejectCode.TOO_LONG: gateway_pb2.REJECT_CODE_TOO_LONG,
    RejectCode.ENGINE: gateway_pb2.REJECT_CODE_ENGINE,
    RejectCode.INVALID: gateway_pb2.REJECT_CODE_INVALID,
    RejectCode.CHANGED: gateway_pb2.REJECT_CODE_CHANGED,
    RejectCode.UNSERVED: gateway_pb2.REJECT_CODE_UNSERVED,
}

_POOLING = {Task.EMBED.value, Task.SCORE.value}

E = TypeVar("E", bound=Enum)


def named(table: Mapping[int, E], value: int, where: str) -> E:
    try:
        return table[value]
    except KeyError:
        raise ProtocolError(f"{where}: {value} is not one of {[e.value for e in table.values()]}") from None


def seq_from(message: model_pb2.SeqId) -> SeqId:
    """The core's name of a sequence."""
    return SeqId(message.request, message.choice)


def seq_to(seq: SeqId) -> model_pb2.SeqId:
    """The wire's name of a sequence."""
    return model_pb2.SeqId(request=seq.request, choice=seq.choice)


def terms_from(tier: model_pb2.Tier.ValueType, weight: int) -> Terms:
    """Of a model, or of a request; a tier of a later version counts as standard."""
    return Terms(TIERS.get(tier, Tier.STANDARD), weight or 1)


def _shapes(messages: Iterable[engine_pb2.ShapeMemory]) -> dict[KvShape, ShapeMemory]:
    return {KvShape(m.kv_shape): ShapeMemory(m.free_blocks, m.used_blocks) for m in messages}


def memory_from(message: engine_pb2.Memory) -> Memory:
    """Counts of free slabs and blocks as reported."""
    reuse, outside = message.reuse, message.outside
    return Memory(
        message.slabs_free,
        message.host_slabs_free,
        _shapes(message.shapes),
        _shapes(message.host_shapes),
        PrefixReuse(reuse.prompt_tokens, reuse.device_tokens, reuse.host_tokens),
        message.slabs_kept,
        OutsideSlabs(outside.reserved_bytes, outside.used_bytes, outside.peak_bytes),
    )


def _shapes_to(shapes: Mapping[KvShape, ShapeMemory]) -> list[engine_pb2.ShapeMemory]:
    return [
        engine_pb2.ShapeMemory(kv_shape=shape, free_blocks=m.free_blocks, used_blocks=m.used_blocks)
        for shape, m in shapes.items()
    ]


def memory_to(memory: Memory) -> engine_pb2.Memory:
    """The wire's form of reported memory, for people."""
    return engine_pb2.Memory(
        slabs_free=memory.slabs_free,
        host_slabs_free=memory.host_slabs_free,
        shapes=_shapes_to(memory.shapes),
        host_shapes=_shapes_to(memory.host_shapes),
        reuse=engine_pb2.PrefixReuse(
            prompt_tokens=memory.reuse.prompt_tokens,
            device_tokens=memory.reuse.device_tokens,
            host_tokens=memory.reuse.host_tokens,
        ),
        slabs_kept=memory.slabs_kept,
        outside=engine_pb2.OutsideSlabs(
            reserved_bytes=memory.outside.reserved_bytes,
            used_bytes=memory.outside.used_bytes,
            peak_bytes=memory.outside.peak_bytes,
        ),
    )


def role_to(role: Role) -> engine_pb2.Role.ValueType:
    """The wire's word for a role."""
    return _ROLE_CODES[role]


def footprint_from(message: model_pb2.Footprint) -> Footprint:
    """What a model takes on an engine."""
    return Footprint(
        weight_bytes=message.weight_bytes,
        weight_slabs=message.weight_slabs,
        kv_shape=KvShape(message.kv_shape),
        kv_block_bytes=message.kv_block_bytes,
        kv_block_tokens=message.kv_block_tokens,
        max_model_len=message.max_model_len,
        content=message.content,
        pools=message.task in _POOLING,
    )


def held_from(message: engine_pb2.HeldSequence) -> Held:
    return Held(
        seq=seq_from(message.seq),
        epoch=message.epoch,
        model=ModelName(message.model),
        prompt_tokens=message.prompt_tokens,
        output_tokens=message.output_tokens,
        kv_tokens=message.kv_tokens,
        place=named(PLACES, message.place, "Hello.held.place"),
    )
