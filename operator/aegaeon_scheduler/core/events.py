"""The scheduler's input events. Frozen, serialisable (core.log), free of prompts and answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from aegaeon_scheduler.core.domain import (
    ALIKE,
    CommandId,
    FailureKind,
    Finish,
    Footprint,
    GatewayId,
    Held,
    InstanceId,
    Memory,
    ModelConfig,
    ModelName,
    Phase,
    Role,
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
class EnginesExpected:
    """All engines that the pool is to have from now on: one that has left and is none of them is not waited for.

    None: that is not known, and any is waited for.
    """

    instances: tuple[InstanceId, ...] | None


@dataclass(frozen=True, slots=True)
class InstanceUp:
    """A sidecar attached (Hello). A known instance with a new incarnation was restarted: what it held is lost.

    `twins`: residents that share slabs, each with the name that stands for all who share them. `beside`: the former
    process of that name lives, so it did not die of what it ran.
    """

    instance: InstanceId
    incarnation: str
    node: str
    role: Role
    device: str
    slab_bytes: int
    slabs: int
    host_slabs: int
    max_batch: int
    memory: Memory
    resident: tuple[ModelName, ...] = ()
    held: tuple[Held, ...] = ()
    twins: tuple[tuple[ModelName, ModelName], ...] = ()
    beside: bool = False


@dataclass(frozen=True, slots=True)
class InstanceDown:
    """A sidecar is gone: its stream broke and did not come back, or its heartbeats stopped."""

    instance: InstanceId


@dataclass(frozen=True, slots=True)
class InstanceDraining:
    """A sidecar is about to end: nothing new is to go there, and what is there is to go elsewhere while it can."""

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
class HostReported:
    """The models whose weights a node's host memory holds: the whole list, whenever it changed."""

    node: str
    cached: tuple[ModelName, ...]


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request, or what is left of one (after a loss): one event for each choice.

    `prefix_tokens` output tokens are with the client already; `arrival` is on the scheduler's clock, seconds. Tokens
    are due `defer_s` later than the model's objective says. `priority`: among those of its tenant, lower ones first.
    `adapter`: the identity of the model's adapter that it is computed with; empty: none. `terms`: its tier and its
    tenant's weight, among the requests for its model.
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


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The client left, or a stop string matched: end this sequence and free it."""

    seq: SeqId


@dataclass(frozen=True, slots=True)
class GatewayDown:
    """A gateway did not come back: its sequences have no reader."""

    gateway: GatewayId


@dataclass(frozen=True, slots=True)
class CommandDone:
    """A command with a lane (all but Turn) ended well. `seconds` on its lane, `bytes_moved` where it copied.

    `kv_tokens`: for SwapOut, the tokens whose KV the handle holds.
    """

    instance: InstanceId
    id: CommandId
    seconds: float
    memory: Memory
    bytes_moved: int = 0
    kv_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """Where one sequence of a turn stands. `output_tokens` and `kv_tokens` are totals.

    `failure` and `reason`: of one that ended with an error, alone; see `Reports._failed`.
    """

    seq: SeqId
    epoch: int
    output_tokens: int
    kv_tokens: int
    starved: bool = False
    finish: Finish | None = None
    failure: FailureKind | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class TurnProgress:
    """A step report of a turn (proto StepDone). Seconds and steps are since the last report of this turn.

    `first_s`: of steps that were the first of their kind there, which is in none of the others. `warm`: the model has
    none to come.
    """

    instance: InstanceId
    turn: CommandId
    progress: tuple[Progress, ...]
    steps: int
    decode_s: float
    prefill_tokens: int
    prefill_s: float
    wait_s: float
    batch: int
    context_tokens: int
    memory: Memory
    end: bool
    first_s: float = 0.0
    warm: bool = False


@dataclass(frozen=True, slots=True)
class CommandFailed:
    """A command failed. Its dependants are reported Skipped."""

    instance: InstanceId
    id: CommandId
    kind: FailureKind
    reason: str
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class CommandSkipped:
    """A command never ran because one in its `after` failed or was cancelled."""

    instance: InstanceId
    id: CommandId
    because: CommandId


@dataclass(frozen=True, slots=True)
class MemoryReported:
    """A heartbeat."""

    instance: InstanceId
    memory: Memory


@dataclass(frozen=True, slots=True)
class Tick:
    """The time that a Wake asked for has come."""


Event = Union[
    CatalogChanged,
    StartHoldChanged,
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
