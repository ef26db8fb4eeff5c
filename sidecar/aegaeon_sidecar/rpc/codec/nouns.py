"""Enumerations, ids, handles and models, translated in both directions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aegaeon_proto.constraints import ConstraintKind
from aegaeon_proto.redaction import encodable
from aegaeon_proto.v1 import engine_pb2, model_pb2
from aegaeon_sidecar.domain.catalog import (
    AdapterSpec,
    AdapterState,
    DirectorySource,
    Footprint,
    HttpSource,
    HubSource,
    ModelPhase,
    ModelSpec,
    ModelState,
    S3Source,
    ServiceTier,
    Source,
)
from aegaeon_sidecar.domain.reports import FailureKind, Role
from aegaeon_sidecar.domain.sequences import Constraint, Finish, KvHandle, Place, SeqKey

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
TIERS: Mapping[ServiceTier, model_pb2.Tier.ValueType] = {
    ServiceTier.STANDARD: model_pb2.TIER_STANDARD,
    ServiceTier.BATCH: model_pb2.TIER_BATCH,
    ServiceTier.INTERACTIVE: model_pb2.TIER_INTERACTIVE,
}
CONSTRAINT_KINDS: Mapping[ConstraintKind | None, model_pb2.ConstraintKind.ValueType] = {
    None: model_pb2.CONSTRAINT_KIND_UNSPECIFIED,
    ConstraintKind.JSON_SCHEMA: model_pb2.CONSTRAINT_KIND_JSON_SCHEMA,
    ConstraintKind.REGEX: model_pb2.CONSTRAINT_KIND_REGEX,
    ConstraintKind.LARK: model_pb2.CONSTRAINT_KIND_LARK,
}
_CONSTRAINT_KIND_OF: Mapping[int, ConstraintKind | None] = {code: kind for kind, code in CONSTRAINT_KINDS.items()}
_TIER_OF: Mapping[int, ServiceTier] = {code: tier for tier, code in TIERS.items()}


def seq_from(message: model_pb2.SeqId) -> SeqKey:
    """The domain's name of a sequence."""
    return SeqKey(message.request, message.choice)


def seqs_from(messages: Iterable[model_pb2.SeqId]) -> tuple[SeqKey, ...]:
    """The domain's names of sequences."""
    return tuple(seq_from(message) for message in messages)


def seq_to(key: SeqKey) -> model_pb2.SeqId:
    """The wire's name of a sequence."""
    return model_pb2.SeqId(request=key.request, choice=key.choice)


def handle_from(message: engine_pb2.KvHandle) -> KvHandle:
    """Where a sequence's blocks lie."""
    return KvHandle(
        node=message.node,
        segment=message.segment,
        blocks=tuple(message.blocks),
        kv_shape=message.kv_shape,
        epoch=message.epoch,
        kv_tokens=message.kv_tokens,
        output=tuple(message.output),
        slabs=tuple(message.slabs),
        lease_slot=message.lease_slot,
        lease_generation=message.lease_generation,
    )


def handle_to(handle: KvHandle | None) -> engine_pb2.KvHandle | None:
    """The message of a handle; None where there is none."""
    if handle is None:
        return None
    return engine_pb2.KvHandle(
        node=handle.node,
        segment=handle.segment,
        blocks=handle.blocks,
        kv_shape=handle.kv_shape,
        epoch=handle.epoch,
        kv_tokens=handle.kv_tokens,
        output=handle.output,
        slabs=handle.slabs,
        lease_slot=handle.lease_slot,
        lease_generation=handle.lease_generation,
    )


def constraint_from(message: model_pb2.Constraint) -> Constraint:
    """What an output must be."""
    return Constraint(
        _CONSTRAINT_KIND_OF.get(message.kind), message.text, tuple(message.end_ids), message.proof, message.share
    )


def source_from(message: model_pb2.ModelSource) -> Source:
    """Where a model's files are; without a kind it is a directory without a name, which cannot be located."""
    kind = message.WhichOneof("kind")
    if kind == "hub":
        hub = message.hub
        return HubSource(hub.repository, hub.revision, hub.credentials_file)
    if kind == "s3":
        s3 = message.s3
        return S3Source(s3.bucket, s3.prefix, s3.endpoint, s3.credentials_file)
    if kind == "http":
        return HttpSource(message.http.url, message.http.credentials_file)
    return DirectorySource(message.directory, message.root)


def source_to(source: Source) -> model_pb2.ModelSource:
    """The message of a source."""
    match source:
        case DirectorySource(directory, root):
            return model_pb2.ModelSource(directory=directory, root=root)
        case HubSource(repository, revision, file):
            hub = model_pb2.HubSource(repository=repository, revision=revision, credentials_file=file)
            return model_pb2.ModelSource(hub=hub)
        case S3Source(bucket, prefix, endpoint, file):
            s3 = model_pb2.S3Source(bucket=bucket, prefix=prefix, endpoint=endpoint, credentials_file=file)
            return model_pb2.ModelSource(s3=s3)
        case HttpSource(url, file):
            return model_pb2.ModelSource(http=model_pb2.HttpSource(url=url, credentials_file=file))


def spec_from(message: model_pb2.ModelSpec) -> ModelSpec:
    """A model as the scheduler tells of it."""
    return ModelSpec(
        name=message.name,
        source=source_from(message.source),
        max_model_len=message.max_model_len,
        ttft_s=message.ttft_s,
        tbt_s=message.tbt_s,
        tier=_TIER_OF.get(message.tier, ServiceTier.STANDARD),
        weight=message.weight,
        tool_calls=message.tool_calls,
        reasoning=message.reasoning,
        task=message.task,
        matryoshka=message.matryoshka,
        prefix_share=message.prefix_share,
        public_prompts=tuple(message.public_prompts),
        created_s=message.created_s,
        identity=message.identity,
        adapters=tuple(AdapterSpec(one.name, source_from(one.source), one.identity) for one in message.adapters),
    )


def spec_to(spec: ModelSpec) -> model_pb2.ModelSpec:
    """The message of a ModelSpec."""
    return model_pb2.ModelSpec(
        name=spec.name,
        source=source_to(spec.source),
        max_model_len=spec.max_model_len,
        ttft_s=spec.ttft_s,
        tbt_s=spec.tbt_s,
        tier=TIERS[spec.tier],
        weight=spec.weight,
        tool_calls=spec.tool_calls,
        reasoning=spec.reasoning,
        task=spec.task,
        matryoshka=spec.matryoshka,
        prefix_share=spec.prefix_share,
        public_prompts=spec.public_prompts,
        created_s=spec.created_s,
        identity=spec.identity,
        adapters=[_adapter_to(adapter) for adapter in spec.adapters],
    )


def _adapter_to(spec: AdapterSpec) -> model_pb2.AdapterSpec:
    return model_pb2.AdapterSpec(name=spec.name, source=source_to(spec.source), identity=spec.identity)


def state_to(state: ModelState) -> model_pb2.ModelState:
    """The message of how far a model is."""
    return model_pb2.ModelState(
        model=state.model,
        phase=PHASES[state.phase],
        reason=encodable(state.reason),
        footprint=_footprint_to(state.footprint),
        bytes_done=state.bytes_done,
        bytes_total=state.bytes_total,
        bytes_per_s=state.bytes_per_s,
        remaining_s=state.remaining_s,
        identity=state.identity,
        adapters=[_adapter_state_to(adapter) for adapter in state.adapters],
        cold=state.cold,
        unsupported=state.unsupported,
        absent=state.absent,
        on_demand=state.on_demand,
    )


def _adapter_state_to(state: AdapterState) -> model_pb2.AdapterState:
    return model_pb2.AdapterState(
        adapter=state.adapter,
        phase=PHASES[state.phase],
        reason=encodable(state.reason),
        identity=state.identity,
        unsupported=state.unsupported,
    )


def _footprint_to(footprint: Footprint | None) -> model_pb2.Footprint | None:
    if footprint is None:
        return None
    return model_pb2.Footprint(
        weight_bytes=footprint.weight_bytes,
        weight_slabs=footprint.weight_slabs,
        kv_shape=footprint.kv_shape,
        kv_block_bytes=footprint.kv_block_bytes,
        kv_block_tokens=footprint.kv_block_tokens,
        max_model_len=footprint.max_model_len,
        content=footprint.content,
        task=footprint.task,
    )
