"""Enumerations, ids and handles, translated in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, TypeVar

from aegaeon_proto.codec.errors import ProtocolError
from aegaeon_proto.codec.fields import Fields
from aegaeon_proto.engine.catalog import ModelPhase, Terms, Tier
from aegaeon_proto.engine.ids import SeqId
from aegaeon_proto.engine.reports import FailureKind, Role
from aegaeon_proto.engine.sampling import ConstraintKind
from aegaeon_proto.engine.sequences import Finish, KvHandle, Place
from aegaeon_proto.v1 import engine_pb2, model_pb2

ROLES: Mapping[Role, engine_pb2.Role.ValueType] = {
    Role.UNIFIED: engine_pb2.ROLE_UNIFIED,
    Role.PREFILL: engine_pb2.ROLE_PREFILL,
    Role.DECODE: engine_pb2.ROLE_DECODE,
}
PLACES: Mapping[Place, engine_pb2.KvPlace.ValueType] = {
    Place.NONE: engine_pb2.KV_PLACE_NONE,
    Place.DEVICE: engine_pb2.KV_PLACE_DEVICE,
    Place.HOST: engine_pb2.KV_PLACE_HOST,
}
PHASES: Mapping[ModelPhase, model_pb2.ModelPhase.ValueType] = {
    ModelPhase.FETCHING: model_pb2.MODEL_PHASE_FETCHING,
    ModelPhase.CACHED: model_pb2.MODEL_PHASE_CACHED,
    ModelPhase.FAILED: model_pb2.MODEL_PHASE_FAILED,
}
FINISHES: Mapping[Finish | None, model_pb2.FinishReason.ValueType] = {
    None: model_pb2.FINISH_REASON_UNSPECIFIED,
    Finish.STOP: model_pb2.FINISH_REASON_STOP,
    Finish.LENGTH: model_pb2.FINISH_REASON_LENGTH,
    Finish.ERROR: model_pb2.FINISH_REASON_ERROR,
}
FAILURES: Mapping[FailureKind | None, engine_pb2.FailureKind.ValueType] = {
    None: engine_pb2.FAILURE_KIND_UNSPECIFIED,
    FailureKind.NO_MEMORY: engine_pb2.FAILURE_KIND_NO_MEMORY,
    FailureKind.UNKNOWN: engine_pb2.FAILURE_KIND_UNKNOWN,
    FailureKind.STALE: engine_pb2.FAILURE_KIND_STALE,
    FailureKind.CANCELLED: engine_pb2.FAILURE_KIND_CANCELLED,
    FailureKind.ENGINE: engine_pb2.FAILURE_KIND_ENGINE,
    FailureKind.INVALID: engine_pb2.FAILURE_KIND_INVALID,
    FailureKind.NOT_FINITE: engine_pb2.FAILURE_KIND_NOT_FINITE,
}
TIERS: Mapping[Tier, model_pb2.Tier.ValueType] = {
    Tier.STANDARD: model_pb2.TIER_STANDARD,
    Tier.BATCH: model_pb2.TIER_BATCH,
    Tier.INTERACTIVE: model_pb2.TIER_INTERACTIVE,
}
CONSTRAINT_KINDS: Mapping[ConstraintKind | None, model_pb2.ConstraintKind.ValueType] = {
    None: model_pb2.CONSTRAINT_KIND_UNSPECIFIED,
    ConstraintKind.JSON_SCHEMA: model_pb2.CONSTRAINT_KIND_JSON_SCHEMA,
    ConstraintKind.REGEX: model_pb2.CONSTRAINT_KIND_REGEX,
    ConstraintKind.LARK: model_pb2.CONSTRAINT_KIND_LARK,
}
ROLE_OF: Mapping[int, Role] = {code: role for role, code in ROLES.items()}
PLACE_OF: Mapping[int, Place] = {code: place for place, code in PLACES.items()}
PHASE_OF: Mapping[int, ModelPhase] = {code: phase for phase, code in PHASES.items()}
FINISH_OF: Mapping[int, Finish | None] = {code: finish for finish, code in FINISHES.items()}
FAILURE_OF: Mapping[int, FailureKind | None] = {code: kind for kind, code in FAILURES.items()}
TIER_OF: Mapping[int, Tier] = {code: tier for tier, code in TIERS.items()}
CONSTRAINT_KIND_OF: Mapping[int, ConstraintKind | None] = {code: kind for kind, code in CONSTRAINT_KINDS.items()}

_HANDLE_LISTS = ("blocks", "output", "slabs")
_HANDLE = Fields(KvHandle, *_HANDLE_LISTS)
E = TypeVar("E", bound=Enum)


def terms_from(tier: int, weight: int) -> Terms:
    """The terms of a model or request; a tier of a later version counts as standard."""
    return Terms(TIER_OF.get(tier, Tier.STANDARD), weight or 1)


def named(table: Mapping[int, E], value: int, where: str) -> E:
    """The meaning of a value that must have one. Raises ProtocolError."""
    try:
        return table[value]
    except KeyError:
        raise ProtocolError(f"{where}: {value} is not one of {[e.value for e in table.values()]}") from None


def seq_from(message: model_pb2.SeqId) -> SeqId:
    """The name of a sequence."""
    return SeqId(message.request, message.choice)


def seqs_from(messages: Iterable[model_pb2.SeqId]) -> tuple[SeqId, ...]:
    """The names of sequences."""
    return tuple(seq_from(message) for message in messages)


def seq_to(seq: SeqId) -> model_pb2.SeqId:
    """The message of a sequence's name."""
    return model_pb2.SeqId(request=seq.request, choice=seq.choice)


def handle_from(message: engine_pb2.KvHandle) -> KvHandle:
    """Where a sequence's blocks lie."""
    lists: dict[str, Any] = {name: tuple(getattr(message, name)) for name in _HANDLE_LISTS}
    return KvHandle(**_HANDLE.of(message), **lists)


def handle_to(handle: KvHandle | None) -> engine_pb2.KvHandle | None:
    """The message of a handle; None where there is none."""
    if handle is None:
        return None
    return engine_pb2.KvHandle(**_HANDLE.of(handle), blocks=handle.blocks, output=handle.output, slabs=handle.slabs)
