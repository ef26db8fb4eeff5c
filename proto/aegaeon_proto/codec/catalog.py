"""Models: where their files are, what they take on an engine, how far they are there."""

from __future__ import annotations

from aegaeon_proto.codec.nouns import PHASES, TIER_OF, TIERS
from aegaeon_proto.engine.catalog import (
    AdapterSpec,
    AdapterState,
    DirectorySource,
    Footprint,
    HttpSource,
    HubSource,
    ModelSpec,
    ModelState,
    S3Source,
    Source,
    Tier,
)
from aegaeon_proto.engine.ids import KvShape
from aegaeon_proto.redaction import encodable
from aegaeon_proto.v1 import model_pb2


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
        tier=TIER_OF.get(message.tier, Tier.STANDARD),
        weight=message.weight,
        tool_calls=message.tool_calls,
        reasoning=message.reasoning,
        task=message.task,
        matryoshka=message.matryoshka,
        prefix_share=message.prefix_share,
        public_prompts=tuple(message.public_prompts),
        created_s=message.created_s,
        identity=message.identity,
        adapters=tuple(_adapter_from(adapter) for adapter in message.adapters),
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


def _adapter_from(message: model_pb2.AdapterSpec) -> AdapterSpec:
    return AdapterSpec(message.name, source_from(message.source), message.identity)


def _adapter_to(spec: AdapterSpec) -> model_pb2.AdapterSpec:
    return model_pb2.AdapterSpec(name=spec.name, source=source_to(spec.source), identity=spec.identity)


def state_to(state: ModelState) -> model_pb2.ModelState:
    """The message of how far a model is."""
    return model_pb2.ModelState(
        model=state.model,
        phase=PHASES[state.phase],
        reason=encodable(state.reason),
        footprint=footprint_to(state.footprint),
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


def footprint_to(footprint: Footprint | None) -> model_pb2.Footprint | None:
    """The message of a footprint; None where there is none."""
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


def footprint_from(message: model_pb2.Footprint) -> Footprint:
    """Memory that a model takes on an engine."""
    return Footprint(
        weight_bytes=message.weight_bytes,
        weight_slabs=message.weight_slabs,
        kv_shape=KvShape(message.kv_shape),
        kv_block_bytes=message.kv_block_bytes,
        kv_block_tokens=message.kv_block_tokens,
        max_model_len=message.max_model_len,
        content=message.content,
        task=message.task,
    )
