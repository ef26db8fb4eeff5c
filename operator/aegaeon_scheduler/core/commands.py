"""The scheduler's output. `Send` goes to a sidecar (proto Command), the rest to gateways or to the driver.

The driver adds what the core does not have: prompt and prefix to Open, the KvHandle to Adopt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from aegaeon_scheduler.core.domain import CommandId, GatewayId, InstanceId, ModelName, RejectCode, SeqId


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
    """KV-in lane: back from this instance's own host tier."""

    seq: SeqId
    epoch: int
    slabs: int


@dataclass(frozen=True, slots=True)
class Adopt:
    """KV-in lane: from the host tier of `source`, whose SwapOut `handle_of` made the handle."""

    seq: SeqId
    epoch: int
    source: InstanceId
    handle_of: CommandId
    slabs: int


@dataclass(frozen=True, slots=True)
class PrefillPart:
    """Compute `tokens` more of prompt + prefix; the part that completes it samples a token, later ones do nothing."""

    seq: SeqId
    tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Compute lane: the prefill parts in order, then `steps` decode steps of everything in `decode`.

    `warm_up`: of no sequence: one kind of step of the model runs that has not run there yet.
    """

    model: ModelName
    prefill: tuple[PrefillPart, ...]
    decode: tuple[SeqId, ...]
    steps: int
    slabs: int
    warm_up: bool = False


@dataclass(frozen=True, slots=True)
class Open:
    """Tell the sidecar of a sequence. The driver adds prompt, prefix, sampling and limits."""

    seq: SeqId
    epoch: int
    model: ModelName


@dataclass(frozen=True, slots=True)
class Close:
    """Forget the sequence and free its blocks in both tiers."""

    seq: SeqId
    epoch: int


@dataclass(frozen=True, slots=True)
class Amend:
    """Change a queued or running turn at its next token boundary."""

    turn: CommandId
    steps: int | None = None
    join: tuple[SeqId, ...] = ()
    leave: tuple[SeqId, ...] = ()
    slabs: int = 0


@dataclass(frozen=True, slots=True)
class Cancel:
    """Drop a queued command; stop a load or copy at its next chunk."""

    id: CommandId


@dataclass(frozen=True, slots=True)
class Fetch:
    """Bring a model that is absent to the node; `identity`: see Load."""

    model: ModelName
    identity: str = ""


Body = Union[Load, Unload, SwapOut, SwapIn, Adopt, Turn, Open, Close, Amend, Cancel, Fetch]


@dataclass(frozen=True, slots=True)
class Send:
    """A command for one sidecar. `after` names ids issued earlier to the same instance."""

    instance: InstanceId
    id: CommandId
    body: Body
    after: tuple[CommandId, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Accept:
    """The sequence is in the queue."""

    gateway: GatewayId
    seq: SeqId


@dataclass(frozen=True, slots=True)
class Reject:
    """The sequence ends here without (further) output."""

    gateway: GatewayId
    seq: SeqId
    code: RejectCode
    reason: str
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SequenceLost:
    """Its KV cache is gone: the gateway is to submit it again with the prefix it holds and a higher epoch.

    `blameless`: it cannot have been the cause, so however often that happens, the gateway goes on.
    """

    gateway: GatewayId
    seq: SeqId
    epoch: int
    reason: str
    blameless: bool = False


@dataclass(frozen=True, slots=True)
class SequenceEnded:
    """The core has forgotten the sequence; the driver may drop what it kept for it.

    `gateway`: of a sequence that an engine has computed to its end. It is notified, as an engine that is killed right
    after its report takes the last tokens with it.
    """

    seq: SeqId
    epoch: int
    gateway: GatewayId | None = None


@dataclass(frozen=True, slots=True)
class Wake:
    """Send a Tick at this time (scheduler's clock, seconds)."""

    at: float


Command = Union[Send, Accept, Reject, SequenceLost, SequenceEnded, Wake]
