"""Identities of what a name computes: two specs of one identity can continue each other's sequences, others cannot.

The scheduler alone makes identities; engines and gateways carry and compare them.
"""

from __future__ import annotations

import hashlib

from aegaeon_proto.v1 import model_pb2

_HEX = 16


def identified(spec: model_pb2.ModelSpec) -> model_pb2.ModelSpec:
    """The same spec with its identity, and its adapters with theirs."""
    spec.identity = identity_of(spec)
    for adapter in spec.adapters:
        adapter.identity = identity_of(model_pb2.ModelSpec(source=adapter.source))
    return spec


def identity_of(spec: model_pb2.ModelSpec) -> str:
    """A hash of the source, of max_model_len and of the task.

    Objectives may change while a model is served, and credentials too.
    """
    computed = model_pb2.ModelSpec(source=spec.source, max_model_len=spec.max_model_len, task=spec.task)
    kind = computed.source.WhichOneof("kind")
    if kind in ("hub", "s3", "http"):
        getattr(computed.source, kind).credentials_file = ""
    return hashlib.sha256(computed.SerializeToString(deterministic=True)).hexdigest()[:_HEX]


def with_adapter(model: str, adapter: str) -> str:
    """The identity of what a model computes with an adapter, of both identities."""
    return hashlib.sha256(f"{model} {adapter}".encode()).hexdigest()[:_HEX]


def objectives_of(spec: model_pb2.ModelSpec, other: model_pb2.ModelSpec) -> model_pb2.ModelSpec:
    """The computation of `spec` and its adapters, with the objectives and terms of `other`."""
    combined = model_pb2.ModelSpec()
    combined.CopyFrom(other)
    combined.source.CopyFrom(spec.source)
    combined.max_model_len, combined.task, combined.identity = spec.max_model_len, spec.task, spec.identity
    del combined.adapters[:]
    combined.adapters.extend(spec.adapters)
    return combined
