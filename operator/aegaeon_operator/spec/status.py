"""The `status` of both kinds, written by the operator.

Conditions are Kubernetes' (metav1.Condition); `kubectl wait --for=condition=Ready` reads them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aegaeon_operator.spec.cel import list_map
from aegaeon_operator.spec.resources import Strict

_REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


class Condition(Strict):
    """One aspect of the object's state."""

    type: Annotated[str, Field(min_length=1, max_length=316)] = Field(
        description="Type of the condition, for example Ready."
    )
    status: Literal["True", "False", "Unknown"] = Field(description="Status of the condition.")
    observed_generation: Annotated[int, Field(ge=0)] = Field(description="Generation of the spec it was derived from.")
    last_transition_time: Annotated[str, Field(max_length=64)] = Field(
        description="Time of the last change of the status (RFC 3339).", json_schema_extra={"format": "date-time"}
    )
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=_REASON)] = Field(
        description="Reason as one CamelCase word, for programs."
    )
    message: Annotated[str, Field(max_length=32768)] = Field(description="Reason as sentences, for users.")


Message = Annotated[str, Field(max_length=256)]
_MESSAGE = "The most important problem or pending change, in one sentence; empty if there is none. Conditions list all."
_CONDITIONS = Field(
    default=(), max_length=16, description="Conditions of the object.", json_schema_extra=list_map("type")
)


class ModelState(Strict):
    """The state of a model or an adapter."""

    name: Annotated[str, Field(min_length=1, max_length=200)] = Field(description="Name that it is served under.")
    state: Literal["Cold", "Cached", "Resident", "Failed"] = Field(
        description="Cold: its files are not in a host cache. Cached: they are in a host cache. Resident: its weights "
        "are on an engine. Failed: see reason."
    )
    reason: Annotated[str, Field(max_length=1024)] = Field(default="", description="Reason of the failure.")
    parent: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="Model of an adapter; unset for a model."
    )
    queued: Annotated[int, Field(ge=0)] = Field(default=0, description="Waiting requests.")
    running: Annotated[int, Field(ge=0)] = Field(default=0, description="Running requests.")
    attainment: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None,
        description="Percentage of the tokens of the last ten minutes that were on time; unset below 100 tokens.",
    )


class EngineCounts(Strict):
    """Engines by role as attached/desired, for example 1/2; unset for a role that the spec does not have."""

    unified: Annotated[str, Field(max_length=16)] | None = Field(default=None, description="Engines of spec.engines.")
    prefill: Annotated[str, Field(max_length=16)] | None = Field(default=None, description="Engines of spec.prefill.")
    decode: Annotated[str, Field(max_length=16)] | None = Field(default=None, description="Engines of spec.decode.")


class GpuUse(Strict):
    """Accelerators in use, and without pooling."""

    used: Annotated[int, Field(ge=0)] = Field(description="Accelerators of the pool's engines.")
    dedicated: Annotated[int, Field(ge=0)] = Field(
        description="Accelerators that the models would need without pooling, at least one per model."
    )


class OutsideSlabs(Strict):
    """Memory outside the slabs of the engine that uses most of it."""

    reserved: Annotated[str, Field(max_length=32)] = Field(description="Reserved memory, adapters included.")
    peak: Annotated[str, Field(max_length=32)] = Field(description="Maximum use since the engine started.")


MOST_NAMES = 4096
Names = Annotated[
    dict[str, Annotated[str, Field(max_length=127)]],
    Field(max_length=MOST_NAMES, json_schema_extra={"x-kubernetes-map-type": "atomic"}),
]


class GpuPoolStatus(Strict):
    """Observed state of a GpuPool."""

    observed_generation: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Generation of the spec last reconciled."
    )
    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()
    message: Message = Field(default="", description=_MESSAGE)
    replicas: Annotated[int, Field(ge=0)] = Field(default=0, description="Number of engines of `spec.engines`.")
    selector: Annotated[str, Field(max_length=1024)] = Field(default="", description="Labels of those engines' pods.")
    engines: EngineCounts = Field(default=EngineCounts(), description="Engines by role, attached/desired.")
    ready_engines: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Number of engines of all roles that are attached to the scheduler."
    )
    models: Annotated[int, Field(ge=0)] = Field(default=0, description="Number of served models.")
    names: Names = Field(
        default={},
        description="Names of the served models and adapters, each with the namespace and name of its ModelPool; the "
        "chart's admission policy reads them.",
    )
    summary: Annotated[str, Field(max_length=64)] = Field(
        default="", description="Models of its ModelPools that can be served without loading files, for example 3/4."
    )
    gpus: GpuUse | None = Field(default=None, description="Accelerators in use, and without pooling.")
    outside_slabs: OutsideSlabs | None = Field(
        default=None,
        description="Memory outside the slabs; unset while no engine is attached.",
    )
    last_answered: Annotated[str, Field(max_length=64)] | None = Field(
        default=None,
        description="Time of the last computed token (RFC 3339), updated at most once a minute.",
        json_schema_extra={"format": "date-time"},
    )


class ModelPoolStatus(Strict):
    """Observed state of a ModelPool."""

    observed_generation: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Generation of the spec last reconciled."
    )
    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()
    message: Message = Field(default="", description=_MESSAGE)
    summary: Annotated[str, Field(max_length=64)] = Field(
        default="", description="Models that can be served without loading files, for example 3/4."
    )
    models: Annotated[tuple[ModelState, ...], Field(max_length=512)] = Field(
        default=(), description="Its models and their adapters.", json_schema_extra=list_map("name")
    )
