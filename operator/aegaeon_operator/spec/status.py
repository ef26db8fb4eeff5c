"""What the operator says of an object: `status` of both kinds.

Conditions are those of Kubernetes (metav1.Condition); `kubectl wait --for=condition=Ready` reads them.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from aegaeon_operator.spec.cel import list_map
from aegaeon_operator.spec.resources import Strict

_REASON = r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"


class Condition(Strict):
    """One aspect of the object's state."""

    type: Annotated[str, Field(min_length=1, max_length=316)] = Field(description="The aspect, for example Ready.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    observed_generation: Annotated[int, Field(ge=0)] = Field(description="Generation of the spec that this is about.")
    last_transition_time: Annotated[str, Field(max_length=64)] = Field(
        description="When the status last changed (RFC 3339).", json_schema_extra={"format": "date-time"}
    )
    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=_REASON)] = Field(
        description="Why, as one CamelCase word for programs."
    )
    message: Annotated[str, Field(max_length=32768)] = Field(description="Why, for people.")


Message = Annotated[str, Field(max_length=256)]
_MESSAGE = "What is wrong or on its way, in one sentence; empty when nothing is. Conditions have all of it."
_CONDITIONS = Field(default=(), max_length=16, description="Aspects of its state.", json_schema_extra=list_map("type"))


class ModelState(Strict):
    """One model as it stands."""

    name: Annotated[str, Field(min_length=1, max_length=200)] = Field(description="Name that it is served by.")
    state: Literal["Cold", "Cached", "Resident", "Failed"] = Field(
        description="Cold: its files are not in a host cache yet. Cached: they are. Resident: on an engine. "
        "Failed: see reason."
    )
    reason: Annotated[str, Field(max_length=1024)] = Field(default="", description="Why it failed.")
    parent: Annotated[str, Field(max_length=200)] | None = Field(
        default=None, description="Of an adapter: the model whose weights it is served with."
    )
    queued: Annotated[int, Field(ge=0)] = Field(default=0, description="Requests that wait.")
    running: Annotated[int, Field(ge=0)] = Field(default=0, description="Requests that are being answered.")
    attainment: Annotated[int, Field(ge=0, le=100)] | None = Field(
        default=None,
        description="Percent of the tokens of the last ten minutes that were on time; left out below 100 tokens.",
    )


class EngineCounts(Strict):
    """Engines by role, as attached/wanted, for example 1/2; a role that the spec does not have is left out."""

    unified: Annotated[str, Field(max_length=16)] | None = Field(default=None, description="Those of spec.engines.")
    prefill: Annotated[str, Field(max_length=16)] | None = Field(default=None, description="Those of spec.prefill.")
    decode: Annotated[str, Field(max_length=16)] | None = Field(default=None, description="Those of spec.decode.")


class GpuUse(Strict):
    """What pooling saves."""

    used: Annotated[int, Field(ge=0)] = Field(description="Accelerators that this pool's engines have.")
    dedicated: Annotated[int, Field(ge=0)] = Field(description="What the same models would need, one each at least.")


class OutsideSlabs(Strict):
    """Memory of the engine that takes most of it beside its slabs."""

    reserved: Annotated[str, Field(max_length=32)] = Field(description="What is reserved for it, adapters included.")
    peak: Annotated[str, Field(max_length=32)] = Field(description="The most that it took since it started.")


MOST_NAMES = 4096
Names = Annotated[
    dict[str, Annotated[str, Field(max_length=127)]],
    Field(max_length=MOST_NAMES, json_schema_extra={"x-kubernetes-map-type": "atomic"}),
]


class GpuPoolStatus(Strict):
    """What runs."""

    observed_generation: Annotated[int, Field(ge=0)] = Field(default=0, description="Generation last acted on.")
    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()
    message: Message = Field(default="", description=_MESSAGE)
    replicas: Annotated[int, Field(ge=0)] = Field(default=0, description="Engines (`spec.engines`) that exist.")
    selector: Annotated[str, Field(max_length=1024)] = Field(default="", description="Labels of those engines' pods.")
    engines: EngineCounts = Field(default=EngineCounts(), description="Engines by role, attached/wanted.")
    ready_engines: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Engines of all roles that are attached to the scheduler."
    )
    models: Annotated[int, Field(ge=0)] = Field(default=0, description="Models that are served.")
    names: Names = Field(
        default={},
        description="Names of models and adapters that are served, each with the namespace and name of its ModelPool; "
        "the chart's admission policy reads them.",
    )
    summary: Annotated[str, Field(max_length=64)] = Field(
        default="", description="How many models of its ModelPools can be served at once, for example 3/4."
    )
    gpus: GpuUse | None = Field(default=None, description="What pooling saves.")
    outside_slabs: OutsideSlabs | None = Field(
        default=None,
        description="Memory beside the slabs; left out while no engine is attached.",
    )
    last_answered: Annotated[str, Field(max_length=64)] | None = Field(
        default=None,
        description="When a token was computed last (RFC 3339); written once a minute at most.",
        json_schema_extra={"format": "date-time"},
    )


class ModelPoolStatus(Strict):
    """What is served."""

    observed_generation: Annotated[int, Field(ge=0)] = Field(default=0, description="Generation last acted on.")
    conditions: Annotated[tuple[Condition, ...], _CONDITIONS] = ()
    message: Message = Field(default="", description=_MESSAGE)
    summary: Annotated[str, Field(max_length=64)] = Field(
        default="", description="How many of its models can be served at once, for example 3/4."
    )
    models: Annotated[tuple[ModelState, ...], Field(max_length=512)] = Field(
        default=(), description="Its models and their adapters.", json_schema_extra=list_map("name")
    )
