"""Commands of the scheduler to an engine, with the fields of v1/engine.proto.

Lanes run side by side, each its commands in the order of issue; a command without a lane acts at once. Memory is
granted, not raced for: `slabs` is how many slabs of the pool a command may take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from aegaeon_proto.engine.catalog import ModelSpec
from aegaeon_proto.engine.ids import CommandId, ModelName, SeqId
from aegaeon_proto.engine.sampling import PoolingParams, SamplingParams
from aegaeon_proto.engine.sequences import KvHandle


@dataclass(frozen=True, slots=True)
class Load:
    """Weights lane: map at most `slabs` slabs into the model's range and copy its weights in.

    What is not in host memory is read from disk, and stays there as well: others that no device uses make room for it,
    unless it is to go `past_host`. With a `twin`, which is resident and of the same content, its slabs are shown as
    well: none is taken, nothing copied. `identity`: which model is meant, should the name have stood for another one.
    """

    model: ModelName
    slabs: int
    past_host: bool = False
    twin: ModelName | None = None
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Unload:
    """Weights lane: give the model's slabs back."""

    model: ModelName


@dataclass(frozen=True, slots=True)
class SwapOut:
    """KV-out lane: the sequence's blocks to the host tier; done means the device blocks are free."""

    seq: SeqId
    epoch: int


@dataclass(frozen=True, slots=True)
class SwapIn:
    """KV-in lane: back from this engine's own host tier."""

    seq: SeqId
    epoch: int
    slabs: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """KV-in lane: from another engine's host tier on this node."""

    seq: SeqId
    epoch: int
    handle: KvHandle
    slabs: int


@dataclass(frozen=True, slots=True)
class PrefillPart:
    """Compute `tokens` more of prompt + prefix; the part that completes it samples a token, later ones do nothing."""

    seq: SeqId
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Compute lane: the prefill parts in order, then `steps` decode steps of everything in `decode`.

    `warm_up`: of no sequence: one kind of step of the model runs that has not run there yet. `report_steps`: decode
    steps from a report to the next, if nothing ends; 0: the engine's default. None is less than that.
    """

    model: ModelName
    prefill: tuple[PrefillPart, ...] = ()
    decode: tuple[SeqId, ...] = ()
    steps: int = 0
    slabs: int = 0
    warm_up: bool = False
    report_steps: int = 0


@dataclass(frozen=True, slots=True)
class Open:
    """At once: a sequence. `sampling` holds what Sampling and Limits say but `max_tokens`; 0 of them: no limit.

    `adapter`: of the model, empty: none; of `adapter_identity` alone.
    `pooling`: None where text is generated.
    `salt`: who may share its KV cache, those of the same one; all do within the first `public_tokens` of the prompt.
    """

    seq: SeqId
    epoch: int
    model: ModelName
    prompt: tuple[int, ...]
    prefix: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    reply_to: str
    adapter: str = ""
    adapter_identity: str = ""
    pooling: PoolingParams | None = None
    salt: bytes = b""
    public_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Close:
    """At once: forget the sequence and free its blocks in both tiers."""

    seq: SeqId
    epoch: int


@dataclass(frozen=True, slots=True)
class Amend:
    """At once: change a queued or running turn at its next token boundary."""

    turn: CommandId
    steps: int | None = None
    join: tuple[SeqId, ...] = ()
    leave: tuple[SeqId, ...] = ()
    slabs: int = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """At once: drop a queued command; stop a load or copy at its next chunk."""

    id: CommandId


@dataclass(frozen=True, slots=True)
class Catalog:
    """At once: all models there are. `retry`: those that failed are tried as their files now are."""

    models: tuple[ModelSpec, ...]
    retry: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """At once: bring a model that is absent to the node; `identity`: see Load."""

    model: ModelName
    identity: str = ""


Immediate = Union[Open, Close, Amend, Cancel, Catalog, Fetch]
"""without a lane"""
Body = Union[Load, Unload, SwapOut, SwapIn, Adopt, Turn, Immediate]


@dataclass(frozen=True, slots=True)
class Command:
    """`after`: ids of earlier commands of this attachment; `body`: None of a kind that this version does not know."""

    id: CommandId
    body: Body | None
    after: tuple[CommandId, ...] = ()
    reason: str = ""
