"""The scheduler's output. `Send` goes to an engine, the rest to gateways or to the driver.

Commands are those of the protocol but Open and Adopt, of which the core knows ids and lengths alone: the driver adds
prompt and prefix to Open, the KvHandle to Adopt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from aegaeon_proto.engine.commands import Amend, Cancel, Close, Fetch, Load, PrefillPart, SwapIn, SwapOut, Turn, Unload
from aegaeon_scheduler.core.domain import CommandId, GatewayId, InstanceId, ModelName, RejectCode, SeqId


@dataclass(frozen=True, slots=True)
class Open:
    """Tell the engine of a sequence. The driver adds prompt, prefix, sampling and limits."""

    seq: SeqId
    epoch: int
    model: ModelName


@dataclass(frozen=True, slots=True)
class Adopt:
    """KV-in lane: from the host tier of `source`, whose SwapOut `handle_of` made the handle."""

    seq: SeqId
    epoch: int
    source: InstanceId
    handle_of: CommandId
    slabs: int


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
