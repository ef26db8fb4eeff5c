"""Models: where their files are, what they take on an engine, how far they are there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aegaeon_proto.codec.fields import Fields
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
from aegaeon_proto.redaction import encodable
from aegaeon_proto.v1 import model_pb2

_REMOTE: Mapping[str, type[HubSource | S3Source | HttpSource]] = {"hub": HubSource, "s3": S3Source, "http": HttpSource}
_KINDS = {form: (kind, Fields(form)) for kind, form in _REMOTE.items()}
_SPEC = Fields(ModelSpec, "source", "tier", "adapters", "public_prompts")
_STATE = Fields(ModelState, "phase", "reason", "footprint", "adapters")
_ADAPTER_STATE = Fields(AdapterState, "phase", "reason")
_FOOTPRINT = Fields(Footprint)


def source_from(message: model_pb2.ModelSource) -> Source:
    """Where a model's files are; without a kind it is a directory without a name, which cannot be located."""
    form = _REMOTE.get(str(message.WhichOneof("kind")))
    if form is None:
        return DirectorySource(message.directory, message.root)
    kind, plain = _KINDS[form]
    return form(**plain.of(getattr(message, kind)))


def source_to(source: Source) -> model_pb2.ModelSource:
    """The message of a source."""
    if isinstance(source, DirectorySource):
        return model_pb2.ModelSource(directory=source.directory, root=source.root)
    kind, plain = _KINDS[type(source)]
    remote: dict[str, Any] = {kind: plain.of(source)}
    return model_pb2.ModelSource(**remote)


def spec_from(message: model_pb2.ModelSpec) -> ModelSpec:
    """A model as the scheduler tells of it."""
    return ModelSpec(
        **_SPEC.of(message),
        source=source_from(message.source),
        tier=TIER_OF.get(message.tier, Tier.STANDARD),
        public_prompts=tuple(message.public_prompts),
        adapters=tuple(AdapterSpec(a.name, source_from(a.source), a.identity) for a in message.adapters),
    )


def spec_to(spec: ModelSpec) -> model_pb2.ModelSpec:
    """The message of a ModelSpec."""
    return model_pb2.ModelSpec(
        **_SPEC.of(spec),
        source=source_to(spec.source),
        tier=TIERS[spec.tier],
        public_prompts=spec.public_prompts,
        adapters=[
            model_pb2.AdapterSpec(name=adapter.name, source=source_to(adapter.source), identity=adapter.identity)
            for adapter in spec.adapters
        ],
    )


def state_to(state: ModelState) -> model_pb2.ModelState:
    """The message of how far a model is."""
    return model_pb2.ModelState(
        **_STATE.of(state),
        phase=PHASES[state.phase],
        reason=encodable(state.reason),
        footprint=footprint_to(state.footprint),
        adapters=[_adapter_state_to(adapter) for adapter in state.adapters],
    )


def _adapter_state_to(state: AdapterState) -> model_pb2.AdapterState:
    phase, reason = PHASES[state.phase], encodable(state.reason)
    return model_pb2.AdapterState(**_ADAPTER_STATE.of(state), phase=phase, reason=reason)


def footprint_to(footprint: Footprint | None) -> model_pb2.Footprint | None:
    """The message of a footprint; None where there is none."""
    return None if footprint is None else model_pb2.Footprint(**_FOOTPRINT.of(footprint))


def footprint_from(message: model_pb2.Footprint) -> Footprint:
    """Memory that a model takes on an engine."""
    return Footprint(**_FOOTPRINT.of(message))
