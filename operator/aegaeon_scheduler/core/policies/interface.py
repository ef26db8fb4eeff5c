"""The interface between decisions (a policy) and mechanism (residency, hand-off, recovery: shared).

A policy owns queues and orders, never memory: it proposes what to run, and shared code frees memory for it or declines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from aegaeon_scheduler.core.state import Instance, Issued, Model, Sequence, Weights


@dataclass(slots=True)
class Proposal:
    """The next turn of an instance: prompts first, then `steps` decode steps of `decode`, oldest first.

    `tokens`: of a prompt at most, the rest of it in later turns; 0: all of it. `tag` is the policy's own (the batch);
    sequences that become ready join an outstanding turn of equal tag.
    """

    model: Model
    prefill: tuple[Sequence, ...]
    decode: list[Sequence]
    steps: int
    reason: str
    tag: object | None = None
    tokens: int = 0

    def part_of(self, seq: Sequence) -> int:
        """Tokens of a sequence's prompt that the turn is to compute."""
        return min(seq.unissued_tokens, self.tokens) if self.tokens else seq.unissued_tokens


@dataclass(slots=True)
class Move:
    """A wish of the pool pass: have sequences of one model on an instance, its weights loaded ahead of their turns.

    Without an instance they leave theirs: KV to the host tier, queued prompts back to where all wait.
    """

    model: Model
    sequences: tuple[Sequence, ...]
    instance: Instance | None
    reason: str


class Policy(Protocol):
    """Decides what to place, what to run next, what to preempt. Times are seconds on the scheduler's clock."""

    name: str

    def instance_up(self, inst: Instance) -> None:
        """A new instance, or one that attached again: it has no work of this policy."""
        ...

    def instance_down(self, inst: Instance) -> None:
        """Drops an instance that is gone; its sequences were forgotten one by one before."""
        ...

    def place(self, seq: Sequence, now: float) -> Instance | None:
        """Queue a sequence for prefill on an instance that has its model; None: nowhere yet."""
        ...

    def too_much(self, seq: Sequence, now: float) -> str | None:
        """Why a new sequence would be late, or make others late; None: it is taken, and counts from here on."""
        ...

    def place_decode(self, seq: Sequence, now: float) -> Instance | None:
        """Choose where a prefilled sequence decodes and put it into a batch there; None: nowhere yet."""
        ...

    def forget(self, seq: Sequence) -> None:
        """Drops a sequence that ended, was lost or moves from every queue and batch. Idempotent."""
        ...

    def batch_of(self, seq: Sequence) -> object | None:
        """Return the sequence's batch in the policy's tables, the `tag` of its decode proposals, or None."""
        ...

    def propose(self, inst: Instance, now: float, barred: Collection[Proposal]) -> Proposal | None:
        """Proposes what the compute lane should run after what it has; called again until it is issued.

        `barred`: its proposals that there is no room for now, nor on the way: something else is wanted.
        """
        ...

    def outranks(self, inst: Instance, seq: Sequence, turn: Issued, now: float) -> bool:
        """Returns whether a prompt that has just come is to run before a decode turn of the lane, though that was
        issued.
        """
        ...

    def issued(self, inst: Instance, proposal: Proposal, turn: Issued) -> None:
        """The proposal is on the lane (perhaps with fewer steps or sequences)."""
        ...

    def refined(self, model: Model) -> None:
        """A step of the model is estimated to take longer than before, or less long."""
        ...

    def reshaped(self, model: Model) -> None:
        """The model's footprint or its objective has changed."""
        ...

    def unissued(self, inst: Instance, seq: Sequence) -> None:
        """A turn with this sequence's prefill did not run to its end: it is to be scheduled again. Idempotent."""
        ...

    def unload_order(self, inst: Instance, idle: list[Weights]) -> list[Weights]:
        """Idle models in the order in which they are unloaded."""
        ...

    def past_host(self, inst: Instance) -> bool:
        """Returns whether weights that a load reads from disk must not take the place of others in host memory."""
        ...

    def preemption_order(self, inst: Instance, sequences: list[Sequence], now: float) -> Iterable[Sequence]:
        """Sequences in preemption order: most slack first."""
        ...

    def check(self, now: float) -> list[str]:
        """Lists the differences between what is kept from one event to the next and what would be computed anew."""
        ...

    def pool_pass(self, now: float) -> list[Move]:
        """Pool level: models and sequences to move, most urgent first. Called when `Pool.pass_at` has come."""
        ...
