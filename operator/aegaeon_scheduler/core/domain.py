"""The domain types that events, commands and policies share: ids, objectives, models, memory.

They mirror `proto/` without the fields that no decision needs (prompts, token ids, addresses).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, NewType, Protocol

ModelName = NewType("ModelName", str)
InstanceId = NewType("InstanceId", str)
GatewayId = NewType("GatewayId", str)
CommandId = NewType("CommandId", int)
KvShape = NewType("KvShape", str)


class SeqId(NamedTuple):
    """One choice of one request; what moves between engines."""

    request: str
    choice: int


class Role(Enum):
    """What an instance is sent. Every sidecar can do both."""

    UNIFIED = "unified"
    PREFILL = "prefill"
    DECODE = "decode"


class Place(Enum):
    """Where a sequence's KV cache is on an instance."""

    NONE = "none"
    DEVICE = "device"
    HOST = "host"


class Finish(Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


class Phase(Enum):
    """How far a model is on an instance. ABSENT: not on its node, which fetches it on request."""

    ABSENT = "absent"
    FETCHING = "fetching"
    CACHED = "cached"
    FAILED = "failed"


class RejectCode(Enum):
    """Why a request was not taken or not finished; the gateway turns it into an HTTP status."""

    UNKNOWN_MODEL = "unknown_model"
    MODEL_FAILED = "model_failed"
    OVERLOADED = "overloaded"
    TOO_LONG = "too_long"
    ENGINE = "engine"
    INVALID = "invalid"
    CHANGED = "changed"
    UNSERVED = "unserved"


POISONED = (RejectCode.ENGINE, RejectCode.INVALID)
"""it ended because no engine could go on with it"""
PASSING = (RejectCode.OVERLOADED, RejectCode.UNSERVED)
"""the same request may succeed later"""


class FailureKind(Enum):
    """What kind of failure a sidecar reports for a command."""

    NO_MEMORY = "no_memory"
    UNKNOWN = "unknown"
    STALE = "stale"
    CANCELLED = "cancelled"
    ENGINE = "engine"
    INVALID = "invalid"
    NOT_FINITE = "not_finite"


@dataclass(frozen=True, slots=True)
class Slo:
    """Service-level objective: token k is on time at arrival + ttft_s + k * tbt_s."""

    ttft_s: float
    tbt_s: float


class Tier(Enum):
    """Who comes late first when not all can be in time: batch before standard before interactive."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"

    @property
    def level(self) -> int:
        """Tiers above standard are less than 0."""
        return _LEVELS[self]


_LEVELS = {Tier.INTERACTIVE: -1, Tier.STANDARD: 0, Tier.BATCH: 1}


@dataclass(frozen=True, slots=True)
class Terms:
    """How a model stands beside others, or a tenant beside the others of its model, when not all can be in time: its
    tier, its weight in the tier."""

    tier: Tier = Tier.STANDARD
    weight: int = 1


ALIKE = Terms()
"""where nothing is given"""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one model takes on an engine. `pools`: it generates nothing, a sequence ends with its prompt."""

    weight_bytes: int
    weight_slabs: int
    kv_shape: KvShape
    kv_block_bytes: int
    kv_block_tokens: int
    max_model_len: int
    content: str = ""
    pools: bool = False


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model of the catalog: its served name, its objective, its terms. `identity`: of what is computed under it."""

    name: ModelName
    slo: Slo
    terms: Terms = ALIKE
    identity: str = ""


@dataclass(frozen=True, slots=True)
class ShapeMemory:
    """Blocks of one KV shape in slabs that are mapped already."""

    free_blocks: int
    used_blocks: int


@dataclass(frozen=True, slots=True)
class PrefixReuse:
    """Tokens of prompts since an instance's start, and how many of them it had not to compute. For people."""

    prompt_tokens: int = 0
    device_tokens: int = 0
    host_tokens: int = 0


@dataclass(frozen=True, slots=True)
class OutsideSlabs:
    """Bytes that an instance has reserved beside its slabs, takes there, and took at most. For people."""

    reserved_bytes: int = 0
    used_bytes: int = 0
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Memory:
    """What an instance has free, as it reports it. Counts of slabs; blocks by KV shape."""

    slabs_free: int
    host_slabs_free: int
    shapes: dict[KvShape, ShapeMemory] = field(default_factory=dict)
    host_shapes: dict[KvShape, ShapeMemory] = field(default_factory=dict)
    reuse: PrefixReuse = PrefixReuse()
    slabs_kept: int = 0  # of slabs_free: weights of unloaded models are in them still. For people
    outside: OutsideSlabs = OutsideSlabs()


@dataclass(frozen=True, slots=True)
class Held:
    """A sequence that an instance says it holds when it attaches."""

    seq: SeqId
    epoch: int
    model: ModelName
    prompt_tokens: int
    output_tokens: int
    kv_tokens: int
    place: Place


Lacking = dict[InstanceId, dict[str, str]]
"""by instance: identities of adapters, each with the reason"""


class Stage(Enum):
    """Where a sequence is in its life."""

    QUEUED = "queued"
    PREFILL = "prefill"
    HANDOFF = "hand-off"
    DECODE = "decode"
    LOST = "lost"


class Watcher(Protocol):
    """Keeps what it computed from something, such as from a sequence, until that has changed."""

    def changed(self) -> None:
        """What was computed no longer holds."""
        ...
