"""The scheduler's commands, with the names and fields of proto/aegaeon_proto/v1/engine.proto, which documents them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from aegaeon_sidecar.domain.catalog import ModelSpec
from aegaeon_sidecar.domain.sequences import KvHandle, PoolingParams, SamplingParams, SeqKey


@dataclass(frozen=True, slots=True)
class Load:
    """Weights lane: make a model resident in at most `slabs` slabs; with a `twin`, in those of that model."""

    model: str
    slabs: int
    past_host: bool = False
    twin: str = ""
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Unload:
    """Weights lane: give the model's slabs back."""

    model: str


@dataclass(frozen=True, slots=True)
class SwapOut:
    """KV-out lane: the sequence's blocks to the host tier."""

    seq: SeqKey
    epoch: int


@dataclass(frozen=True, slots=True)
class SwapIn:
    """KV-in lane: back from this sidecar's own host tier."""

    seq: SeqKey
    epoch: int
    slabs: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """KV-in lane: from another sidecar's host tier on this node."""

    seq: SeqKey
    epoch: int
    handle: KvHandle
    slabs: int


@dataclass(frozen=True, slots=True)
class PrefillPart:
    """Compute `tokens` more of prompt and prefix; the part that completes it samples one token."""

    seq: SeqKey
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Compute lane: the prefill parts in order, then `steps` decode steps of everything in `decode`.

    `warm_up`: of no sequence: one kind of step of the model runs that has not run yet.
    """

    model: str
    prefill: tuple[PrefillPart, ...] = ()
    decode: tuple[SeqKey, ...] = ()
    steps: int = 0
    slabs: int = 0
    warm_up: bool = False


@dataclass(frozen=True, slots=True)
class Open:
    """At once: a sequence. `sampling` holds what Sampling and Limits say but `max_tokens`; 0 of them: no limit.

    `adapter`: of the model, empty: none; of `adapter_identity` alone.
    `pooling`: None where text is generated.
    `salt`: who may share its KV cache, those of the same one; all do within the first `public_tokens` of the prompt.
    """

    seq: SeqKey
    epoch: int
    model: str
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
    """At once: forget a sequence, free its blocks in both tiers."""

    seq: SeqKey
    epoch: int


@dataclass(frozen=True, slots=True)
class Amend:
    """At once: change a queued or running turn at its next token boundary."""

    turn: int
    steps: int | None = None
    join: tuple[SeqKey, ...] = ()
    leave: tuple[SeqKey, ...] = ()
    slabs: int = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """At once: drop a queued command; stop a load or copy at its next chunk."""

    id: int


@dataclass(frozen=True, slots=True)
class Catalog:
    """At once: all models there are. `retry`: those that failed are tried as their files now are."""

    models: tuple[ModelSpec, ...]
    retry: bool = False


@dataclass(frozen=True, slots=True)
class Fetch:
    """At once: requests wait for a model that is absent. `identity`: as in Load."""

    model: str
    identity: str = ""


Immediate = Union[Open, Close, Amend, Cancel, Catalog, Fetch]
"""without a lane"""
Body = Union[Load, Unload, SwapOut, SwapIn, Adopt, Turn, Immediate]


@dataclass(frozen=True, slots=True)
class Command:
    """`after`: ids of earlier commands of this attachment; `body`: None of a kind that this version does not know."""

    id: int
    body: Body | None
    after: tuple[int, ...] = ()
    reason: str = ""
