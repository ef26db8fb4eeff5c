"""Reports of an engine to its scheduler; v1/engine.proto has the message of each.

Each names its engine: on the wire the stream does. They are immutable by convention. Progress, made for each sequence
of each turn, is not frozen: with eight fields that costs ten times as much to make.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Union

from aegaeon_proto.engine.catalog import ModelSpec, ModelState
from aegaeon_proto.engine.ids import CommandId, InstanceId, KvShape, ModelName, SeqId
from aegaeon_proto.engine.sequences import Finish, Held, KvHandle


class Role(Enum):
    """The kinds of work that an engine is sent. Each can do both."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class FailureKind(Enum):
    """Causes for which a command failed or a sequence ended."""

    NO_MEMORY = "no_memory"
    UNKNOWN = "unknown"
    STALE = "stale"
    CANCELLED = "cancelled"
    ENGINE = "engine"
    INVALID = "invalid"
    NOT_FINITE = "not_finite"


@dataclass(frozen=True, slots=True)
class ShapeMemory:
    """Blocks of one KV shape in slabs that held blocks touch; cached ones count as free."""

    free_blocks: int
    used_blocks: int


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """Tokens of prompts since the start: how many were to be prefilled, and how many of them were cached where."""

    prompt_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0


@dataclass(frozen=True, slots=True)
class OutsideSlabs:
    """Bytes beside the slabs: what is reserved for it, what it takes, and the most that it took since the start."""

    reserved_bytes: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """Free memory: counts of slabs, and blocks by KV shape. `reuse`, `slabs_kept` and `outside` are for people.

    `slabs_kept`: of the free ones, those that hold the weights of unloaded models still.
    """

    slabs_free: int
    host_slabs_free: int
    shapes: dict[KvShape, ShapeMemory] = field(default_factory=dict)
    host_shapes: dict[KvShape, ShapeMemory] = field(default_factory=dict)
    reuse: PrefixReuse = PrefixReuse()
    slabs_kept: int = 0
    outside: OutsideSlabs = OutsideSlabs()


@dataclass(frozen=True, slots=True)
class InstanceUp:
    """An engine attaches. A known one with a new incarnation was restarted: what it held is lost.

    `device`: its make; `max_batch`: sequences of a decode step at most; `twins`: residents that share slabs, each with
    the name that stands for all who share them. `beside`, which the scheduler sets: the former process of that name
    lives, so it did not die of what it ran.
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
class Hello:
    """The first report of an attachment: the whole picture. `started`: of the process, unix seconds."""

    up: InstanceUp
    models: tuple[ModelState, ...]
    catalog: tuple[ModelSpec, ...]
    started: float


@dataclass(frozen=True, slots=True)
class CommandDone:
    """A command with a lane (all but Turn) ended well. `seconds` on its lane, `bytes_moved` where it copied.

    `kv_tokens`: for SwapOut, the tokens whose KV the handle holds. `handle`: of a SwapOut, on the engine alone; the
    scheduler passes its message on unread.
    """

    instance: InstanceId
    id: CommandId
    seconds: float
    memory: Memory
    bytes_moved: int = 0
    kv_tokens: int = 0
    handle: KvHandle | None = None


@dataclass(slots=True)
class Progress:
    """Where one sequence of a turn stands. `output_tokens` and `kv_tokens` are totals.

    `failure` and `reason`: of an end with an error, alone.
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
    """Progress of a turn. Seconds and steps are since its last report; `end`: it is over.

    `first_s`: of steps that were the first of their kind there, for which kernels are compiled and graphs captured; it
    is in none of the others. `warm`: the model has none to come.
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
    """A command failed. Its dependants are reported CommandSkipped."""

    instance: InstanceId
    id: CommandId
    kind: FailureKind
    reason: str
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class CommandSkipped:
    """A command will never run: `because`, which it waited for, failed, was cancelled or was skipped."""

    instance: InstanceId
    id: CommandId
    because: CommandId


@dataclass(frozen=True, slots=True)
class MemoryReported:
    """A heartbeat."""

    instance: InstanceId
    memory: Memory


@dataclass(frozen=True, slots=True)
class HostReported:
    """The models whose weights a node's host memory holds: the whole list, whenever it changed."""

    node: str
    cached: tuple[ModelName, ...]


@dataclass(frozen=True, slots=True)
class InstanceDraining:
    """An engine is about to end: nothing new is to go there, and what is there is to go elsewhere while it can."""

    instance: InstanceId


Update = Union[CommandDone, TurnProgress, CommandFailed, CommandSkipped, MemoryReported, HostReported, InstanceDraining]
"""an event of the scheduler's core as it is"""
Report = Union[Hello, ModelState, Update]
