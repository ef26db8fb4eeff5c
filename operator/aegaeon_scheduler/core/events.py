"""The scheduler's input events: engines' reports, and what gateways and operators ask for.

Frozen, serialisable (core.log), free of prompts and answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from aegaeon_proto.engine.reports import (
    CommandDone,
    CommandFailed,
    CommandSkipped,
    HostReported,
    InstanceDraining,
    InstanceUp,
    MemoryReported,
    Progress,
    TurnProgress,
)
from aegaeon_scheduler.core.domain import (
    ALIKE,
    Footprint,
    GatewayId,
    InstanceId,
    ModelConfig,
    ModelName,
    Phase,
    SeqId,
    Terms,
)


@dataclass(frozen=True, slots=True)
class CatalogChanged:
    """The whole list of models; what is missing from it is withdrawn."""

    models: tuple[ModelConfig, ...]


@dataclass(frozen=True, slots=True)
class StartHoldChanged:
    """How long requests wait from now on while an engine for them is started; see core.config's `start_s`."""

    start_s: float


@dataclass(frozen=True, slots=True)
class TurnsStretched:
    """Decode turns may have up to `factor` times as many steps from now on; 1: as configured.

    The process around the core is late with reports, and longer turns need fewer of them.
    """

    factor: int


@dataclass(frozen=True, slots=True)
class EnginesExpected:
    """All engines that the pool is to have from now on: one that has left and is none of them is not waited for.

    None: that is not known, and any is waited for.
    """

    instances: tuple[InstanceId, ...] | None


@dataclass(frozen=True, slots=True)
class InstanceDown:
    """A sidecar is gone: its stream broke and did not come back, or its heartbeats stopped."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class ModelReported:
    """How far a model is on an instance; `footprint` once it is cached, `reason` when it failed.

    `without`: identities of its adapters that cannot be served there, each with why not. `cold`: its first steps there
    will take longer than later ones, unless a turn warms up. `remaining_s`: until it is fetched; 0: not known.
    """

    instance: InstanceId
    model: ModelName
    phase: Phase
    footprint: Footprint | None = None
    reason: str = ""
    without: tuple[tuple[str, str], ...] = ()
    cold: bool = False
    remaining_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request, or what is left of one (after a loss): one event for each choice.

    `prefix_tokens` output tokens are with the client already; `arrival` is on the scheduler's clock, seconds. Tokens
    are due `defer_s` later than the model's objective says. `priority`: among those of its tenant, lower ones first.
    `adapter`: the identity of the model's adapter that it is computed with; empty: none. `terms`: its tier and its
    tenant's weight, among the requests for its model. `chain`: hashes of the prompt's beginnings (see core.prefix),
    equal where engines may share them; empty: nothing of it is shared.
    """

    seq: SeqId
    epoch: int
    gateway: GatewayId
    model: ModelName
    arrival: float
    prompt_tokens: int
    prefix_tokens: int
    max_tokens: int
    defer_s: float = 0.0
    tenant: str = ""
    priority: int = 0
    adapter: str = ""
    terms: Terms = ALIKE
    chain: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client left, or a stop string matched: end this sequence and free it."""

    seq: SeqId


@dataclass(frozen=True, slots=True)
class GatewayDown:
    """A gateway did not come back: its sequences have no reader."""

    gateway: GatewayId


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that a Wake asked for has come."""


Event = Union[
    CatalogChanged,
    StartHoldChanged,
    TurnsStretched,
    EnginesExpected,
    InstanceUp,
    InstanceDown,
    InstanceDraining,
    ModelReported,
    HostReported,
    Submitted,
    Cancelled,
    GatewayDown,
    CommandDone,
    TurnProgress,
    CommandFailed,
    CommandSkipped,
    MemoryReported,
    Tick,
]
