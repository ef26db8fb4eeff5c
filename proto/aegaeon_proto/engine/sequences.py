"""Where a sequence's KV cache is, how another engine copies it, and why the sequence ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from aegaeon_proto.engine.ids import ModelName, SeqId


class Place(Enum):
    """Where a sequence's KV cache is on an engine."""

    NONE = "none"
    DEVICE = "device"
    HOST = "host"


class Finish(Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class KvHandle:
    """Where a sequence's blocks lie in a node's segment, so that another engine can copy them.

    `segment`: its file; `blocks`: in order, ids of the source's range of the shape; `slabs`: of the segment, at each
    position of that range; `output`: all tokens so far; `lease_slot` and `lease_generation`: by which they stay.
    """

    node: str
    segment: str
    blocks: tuple[int, ...]
    kv_shape: str
    epoch: int
    kv_tokens: int
    output: tuple[int, ...]
    slabs: tuple[int, ...]
    lease_slot: int
    lease_generation: int


@dataclass(frozen=True, slots=True)
class Held:
    """A sequence that an engine holds when it attaches; `handle` when its KV cache is on the host."""

    seq: SeqId
    epoch: int
    model: ModelName
    prompt_tokens: int
    output_tokens: int
    kv_tokens: int
    place: Place
    handle: KvHandle | None = None
