"""Reports to the scheduler and tokens to gateways; proto/aegaeon_proto/v1/ defines what each means.

They are immutable by convention. Token and SeqProgress, made for each sequence in each step, are not frozen: with eight
fields that costs ten times as much to make.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Union

from aegaeon_sidecar.domain.catalog import ModelSpec, ModelState
from aegaeon_sidecar.domain.sequences import Finish, KvHandle, Place, Said, SeqKey


class Role(Enum):
    """What this sidecar is sent; it can do both."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class FailureKind(Enum):
    """What a command failed with, or a sequence ended with."""

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

    kv_shape: str
    free_blocks: int
    used_blocks: int


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """Tokens of prompts since the start: how many were to be prefilled, and how many of them were found where."""

    prompt_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0


@dataclass(frozen=True, slots=True)
class OutsideSlabs:
    """Memory beside the slabs: what is reserved for it, what it takes, and the most that it took since the start."""

    reserved_bytes: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What is free. `slabs_kept`: of the free ones, those that hold the weights of unloaded models still."""

    slabs_free: int
    host_slabs_free: int
    shapes: tuple[ShapeMemory, ...] = ()
    host_shapes: tuple[ShapeMemory, ...] = ()
    reuse: PrefixReuse = PrefixReuse()
    slabs_kept: int = 0
    outside: OutsideSlabs = OutsideSlabs()


@dataclass(frozen=True, slots=True)
class HeldSequence:
    """A sequence that is here when a scheduler comes; `handle` when its KV cache is on the host."""

    seq: SeqKey
    epoch: int
    model: str
    prompt_tokens: int
    output_tokens: int
    kv_tokens: int
    place: Place
    handle: KvHandle | None = None


@dataclass(frozen=True, slots=True)
class Hello:
    """The first report of an attachment: the whole picture. `started`: of the process, unix seconds."""

    instance: str
    incarnation: str
    node: str
    role: Role
    device: str
    slab_bytes: int
    slabs: int
    host_slabs: int
    memory: Memory
    resident: tuple[str, ...]
    models: tuple[ModelState, ...]
    held: tuple[HeldSequence, ...]
    max_batch: int
    twins: Mapping[str, str]
    catalog: tuple[ModelSpec, ...]
    started: float


@dataclass(frozen=True, slots=True)
class Done:
    """A command is over; `handle` of a SwapOut, `bytes` moved, `seconds` on its lane."""

    id: int
    seconds: float
    memory: Memory
    handle: KvHandle | None = None
    bytes: int = 0


@dataclass(slots=True)
class SeqProgress:
    """Where a sequence stands; `reason` and `failure` of an end with an error."""

    seq: SeqKey
    epoch: int
    output_tokens: int
    kv_tokens: int
    starved: bool = False
    finish: Finish | None = None
    reason: str = ""
    failure: FailureKind | None = None


@dataclass(frozen=True, slots=True)
class StepDone:
    """What a turn did since its last report; `end`: it is over.

    `first_s`: of steps that were the first of their kind here, for which kernels are compiled and graphs captured;
    `warm`: the model has none to come.
    """

    turn: int
    progress: tuple[SeqProgress, ...]
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
class Failed:
    """A command failed."""

    id: int
    kind: FailureKind
    reason: str
    memory: Memory


@dataclass(frozen=True, slots=True)
class Skipped:
    """Command `id` will never run because `because`, which it waited for, failed, was cancelled or was skipped."""

    id: int
    because: int


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """It lives."""

    memory: Memory


@dataclass(frozen=True, slots=True)
class HostCache:
    """All models of the catalog that the node's host cache holds."""

    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Draining:
    """It is about to end."""


Report = Union[Hello, Done, StepDone, Failed, Skipped, Heartbeat, ModelState, HostCache, Draining]


@dataclass(slots=True)
class Token:
    """Output token `index` of a sequence, for its gateway. `top`: (token id, logprob), likeliest first.

    `pooled`: float32, little-endian, of a sequence without text.
    """

    seq: SeqKey
    epoch: int
    index: int
    token: int = 0
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    finish: Finish | None = None
    cached_tokens: int = 0
    prompt: tuple[Said, ...] = ()
    prefill_s: float = 0.0
    load_s: float = 0.0
    stall_s: float = 0.0
    pooled: bytes = b""
