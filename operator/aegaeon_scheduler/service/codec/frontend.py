"""Gateways: submissions become events, verdicts become replies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from aegaeon_proto.codec.nouns import seq_to, terms_from
from aegaeon_proto.v1 import gateway_pb2
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import GatewayId, ModelName, RejectCode, SeqId

REJECTS: Mapping[RejectCode, gateway_pb2.RejectCode.ValueType] = {
    RejectCode.UNKNOWN_MODEL: gateway_pb2.REJECT_CODE_UNKNOWN_MODEL,
    RejectCode.MODEL_FAILED: gateway_pb2.REJECT_CODE_MODEL_FAILED,
    RejectCode.OVERLOADED: gateway_pb2.REJECT_CODE_OVERLOADED,
    RejectCode.TOO_LONG: gateway_pb2.REJECT_CODE_TOO_LONG,
    RejectCode.ENGINE: gateway_pb2.REJECT_CODE_ENGINE,
    RejectCode.INVALID: gateway_pb2.REJECT_CODE_INVALID,
    RejectCode.CHANGED: gateway_pb2.REJECT_CODE_CHANGED,
    RejectCode.UNSERVED: gateway_pb2.REJECT_CODE_UNSERVED,
}


def complaint(submit: gateway_pb2.Submit) -> str:
    """Returns what makes a submission impossible to schedule; empty when nothing does."""
    if not submit.choices:
        return "submitted without any choice"
    if not submit.prompt:
        return "submitted with an empty prompt"
    if submit.limits.max_tokens < 1:
        return "limits.max_tokens must be 1 or more"
    if any(choice.epoch < 1 for choice in submit.choices):
        return "epochs begin with 1"
    for name, seconds in (("age_s", submit.age_s), ("defer_s", submit.defer_s)):
        if not 0 <= seconds < math.inf:
            return f"{name} is {seconds}; it must be a number of seconds, 0 or more"
    return ""


def submitted(
    gateway: GatewayId, submit: gateway_pb2.Submit, now: float, chain: tuple[int, ...] = ()
) -> Iterator[events.Submitted]:
    """One event for each choice; the arrival is `age_s` before `now` (scheduler's clock, seconds). `chain`: of the
    prompt, as in Submitted."""
    for choice in submit.choices:
        yield events.Submitted(
            seq=SeqId(submit.request, choice.choice),
            epoch=choice.epoch,
            gateway=gateway,
            model=ModelName(submit.model),
            arrival=now - submit.age_s,
            prompt_tokens=len(submit.prompt),
            prefix_tokens=len(choice.prefix),
            max_tokens=submit.limits.max_tokens,
            defer_s=submit.defer_s,
            tenant=submit.tenant,
            priority=submit.priority,
            adapter=submit.adapter_identity,
            terms=terms_from(submit.terms.tier, submit.terms.weight),
            chain=chain,
        )


def rejected(request: str, reject: commands.Reject) -> gateway_pb2.GatewayReply:
    """The verdict on a whole request."""
    message = gateway_pb2.Rejected(
        request=request, code=REJECTS[reject.code], reason=reject.reason, retry_after_s=reject.retry_after_s
    )
    return gateway_pb2.GatewayReply(rejected=message)


def accepted(request: str) -> gateway_pb2.GatewayReply:
    """Every choice of the request is in the queue."""
    return gateway_pb2.GatewayReply(accepted=gateway_pb2.Accepted(request=request))


def ended(command: commands.SequenceEnded) -> gateway_pb2.GatewayReply:
    """All of it was computed: its last tokens are on their way to the gateway."""
    return gateway_pb2.GatewayReply(ended=gateway_pb2.Ended(seq=seq_to(command.seq), epoch=command.epoch))


def lost(command: commands.SequenceLost) -> gateway_pb2.GatewayReply:
    """The gateway is to submit the sequence again."""
    message = gateway_pb2.Lost(seq=seq_to(command.seq), epoch=command.epoch, reason=command.reason)
    message.blameless = command.blameless
    return gateway_pb2.GatewayReply(lost=message)
