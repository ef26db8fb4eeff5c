"""Models: as the configuration names them, on the wire, and as the core knows them."""

from __future__ import annotations

from aegaeon_proto.codec.nouns import TIERS, terms_from
from aegaeon_proto.v1 import model_pb2
from aegaeon_scheduler.config import ModelEntry, SourceEntry
from aegaeon_scheduler.core.domain import ModelConfig, ModelName, Slo
from aegaeon_scheduler.service.identity import identified


def spec_of(entry: ModelEntry) -> model_pb2.ModelSpec:
    """The wire's form of a configured model."""
    fields = entry.model_dump(exclude={"source", "tier", "adapters"})
    adapters = [model_pb2.AdapterSpec(name=adapter.name, source=_source(adapter.source)) for adapter in entry.adapters]
    source, tier = _source(entry.source), TIERS[entry.tier]
    return identified(model_pb2.ModelSpec(source=source, tier=tier, adapters=adapters, **fields))


def config_of(spec: model_pb2.ModelSpec) -> ModelConfig:
    """A model as the core knows it."""
    terms = terms_from(spec.tier, spec.weight)
    return ModelConfig(ModelName(spec.name), Slo(spec.ttft_s, spec.tbt_s), terms, spec.identity)


def _source(entry: SourceEntry) -> model_pb2.ModelSource:
    remote = entry.model_dump(include={"hub", "s3", "http"}, exclude_none=True)
    return model_pb2.ModelSource(**remote or {"directory": entry.directory or "", "root": entry.root})
