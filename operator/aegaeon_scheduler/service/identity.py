"""Of what is computed under a name: two specs of one identity may go on with each other's sequences, others may not.

The scheduler alone makes identities; engines and gateways carry and compare them.
"""

from __future__ import annotations

import hashlib

from aegaeon_proto.v1 import model_pb2

_HEX = 16


def identified(spec: model_pb2.ModelSpec) -> model_pb2.ModelSpec:
    """The same spec with its identity."""
    spec.identity = identity_of(spec)
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


def objectives_of(spec: model_pb2.ModelSpec, other: model_pb2.ModelSpec) -> model_pb2.ModelSpec:
    """What `spec` computes, with the objectives and terms of `other`."""
    found = model_pb2.ModelSpec()
    found.CopyFrom(other)
    found.source.CopyFrom(spec.source)
    found.max_model_len, found.task, found.identity = spec.max_model_len, spec.task, spec.identity
    return found
