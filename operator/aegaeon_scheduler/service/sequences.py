"""Data of a sequence that engines need and the core does not: prompt, prefix, sampling, limits, the destination of
tokens.

Kept from the submission until the core has forgotten the sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from aegaeon_proto.v1 import engine_pb2, gateway_pb2
from aegaeon_scheduler.core.domain import GatewayId, SeqId


@dataclass(frozen=True, slots=True)
class Origin:
    """The stream that a submission came on. `number` rises with every stream of any gateway."""

    gateway: GatewayId
    sink: str
    number: int


def remove_choices(submit: gateway_pb2.Submit, choices: Collection[int]) -> bool:
    """Their reader (none named: of all) has left, and the submission still waits. Whether any choice is left."""
    for at in reversed(range(len(submit.choices))):
        if not choices or submit.choices[at].choice in choices:
            del submit.choices[at]
    return bool(submit.choices)


@dataclass(slots=True)
class OpenSequence:
    """One choice of a submission; the submission itself is shared by its choices."""

    epoch: int
    origin: Origin
    submit: gateway_pb2.Submit
    choice: gateway_pb2.Choice
    queued: bool = False  # the core accepted it
    refused: bool = False  # the gateway has its answer: the request ends

    def complete(self, command: engine_pb2.Command) -> None:
        """Add to Open what the core left out."""
        body = command.open
        body.prompt.extend(self.submit.prompt)
        body.prefix.extend(self.choice.prefix)
        body.sampling.CopyFrom(self.submit.sampling)
        body.limits.CopyFrom(self.submit.limits)
        if self.submit.HasField("pooling"):
            body.pooling.CopyFrom(self.submit.pooling)
        body.reply_to = self.origin.sink
        body.adapter, body.adapter_identity = self.submit.adapter, self.submit.adapter_identity
        body.salt, body.public_tokens = self.submit.salt, self.submit.public_tokens


class SequenceBook:
    """Owner of the open sequences, by request and choice."""

    def __init__(self) -> None:
        self._requests: dict[str, dict[int, OpenSequence]] = {}

    def add(self, origin: Origin, submit: gateway_pb2.Submit) -> None:
        """Every choice of a submission; an older epoch of the same sequence is replaced, others stay."""
        choices = self._requests.setdefault(submit.request, {})
        for choice in submit.choices:
            known = choices.get(choice.choice)
            if known is None or known.epoch < choice.epoch:
                choices[choice.choice] = OpenSequence(choice.epoch, origin, submit, choice)

    def get(self, seq: SeqId) -> OpenSequence | None:
        """The sequence, if it is open."""
        return self._requests.get(seq.request, {}).get(seq.choice)

    def of_request(self, request: str) -> dict[SeqId, OpenSequence]:
        """The open choices of a request."""
        return {SeqId(request, choice): kept for choice, kept in self._requests.get(request, {}).items()}

    def any_of_model(self, model: str) -> bool:
        """True when a request for this model is open."""
        return any(self._of_model(model))

    def any_begun(self, model: str) -> bool:
        """True when a request was partly answered when it was submitted."""
        return any(kept.choice.prefix for kept in self._of_model(model))

    def older_than(self, origin: Origin) -> list[SeqId]:
        """Sequences that the same gateway submitted on an earlier stream and has not submitted again."""
        return [
            SeqId(request, choice)
            for request, choices in self._requests.items()
            for choice, kept in choices.items()
            if kept.origin.gateway == origin.gateway and kept.origin.number < origin.number
        ]

    def drop(self, seq: SeqId, epoch: int) -> None:
        """Forget the sequence, unless it was submitted again under a newer epoch since."""
        kept = self.get(seq)
        if kept is not None and kept.epoch <= epoch:
            self._remove(seq)

    def drop_all(self, seqs: Iterable[SeqId]) -> None:
        """Forget these sequences, whatever their epoch."""
        for seq in seqs:
            self._remove(seq)

    def of_gateway(self, gateway: GatewayId) -> list[SeqId]:
        """The open sequences of a gateway."""
        return [
            SeqId(request, choice)
            for request, choices in self._requests.items()
            for choice, kept in choices.items()
            if kept.origin.gateway == gateway
        ]

    def _of_model(self, model: str) -> Iterator[OpenSequence]:
        return (kept for choices in self._requests.values() for kept in choices.values() if kept.submit.model == model)

    def _remove(self, seq: SeqId) -> None:
        choices = self._requests.get(seq.request, {})
        choices.pop(seq.choice, None)
        if not choices:
            self._requests.pop(seq.request, None)

    def __len__(self) -> int:
        return sum(len(choices) for choices in self._requests.values())
