"""The contract between decisions (a policy) and mechanism (residency, hand-off, recovery: shared), in three parts:
where sequences go, what an engine runs next, and who makes room.

The core owns facts, and a policy reads them: of the rows of `core.state` it sets `Sequence.batch` and `Sequence.row`
alone, and asks an engine for loads and copies ahead of turns in `Instance.wanted` and `incoming`. It never owns memory:
it proposes, and shared code frees memory for that or declines. Times are seconds on the scheduler's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from aegaeon_scheduler.core.batch import Batch
from aegaeon_scheduler.core.state import Instance, Issued, Model, Sequence, Weights


@dataclass(slots=True, init=False)
class Proposal:
    """The next turn of an instance: prompts first, then `steps` decode steps of `decode`, oldest first.

    `tokens`: of a prompt at most, the rest of it in later turns; 0: all of it. Sequences of `batch` that become ready
    join the turn while it is out.
    """

    model: Model
    prefill: tuple[Sequence, ...]
    decode: list[Sequence]
    steps: int
    reason: str
    batch: Batch | None
    tokens: int

    def __init__(
        self, model: Model, prefill: tuple[Sequence, ...], decode: list[Sequence], steps: int, reason: str,
        batch: Batch | None = None, tokens: int = 0,
    ) -> None:  # fmt: skip
        self.model, self.prefill, self.decode = model, prefill, decode
        self.steps, self.reason, self.batch, self.tokens = steps, reason, batch, tokens

    def part_of(self, seq: Sequence, inst: Instance) -> int:
        """Tokens of a sequence's prompt that the turn is to compute."""
        left = seq.unissued_tokens - seq.cached_on(inst)
        return min(left, self.tokens) if self.tokens else left


@dataclass(slots=True)
class Move:
    """A wish of the pool pass: have sequences of one model on an instance, its weights loaded ahead of their turns.

    Without an instance they leave theirs: KV to the host tier, queued prompts back to where all wait; KV that is on the
    host tier of an instance that drains is given up.
    """

    model: Model
    sequences: tuple[Sequence, ...]
    instance: Instance | None
    reason: str


class Placement(Protocol):
    """Where sequences go."""

    def refusal(self, seq: Sequence, now: float) -> str | None:
        """Why a new sequence would be late, or make others late; None: it is taken, and counts from here on."""
        ...

    def place(self, seq: Sequence, now: float) -> Instance | None:
        """Choose an instance that has its model and put it into a batch there: by its stage for its prompt, or to
        decode; None: nowhere yet."""
        ...

    def forget(self, seq: Sequence) -> None:
        """Drop a sequence that ended, was lost or moves from every queue and batch. Idempotent."""
        ...

    def pool_pass(self, now: float) -> list[Move]:
        """Models and sequences to move, most urgent first. Called when `Pool.pass_at` has come."""
        ...


class Dispatch(Protocol):
    """Choice of what an engine runs next."""

    def propose(self, inst: Instance, now: float, barred: Collection[Proposal]) -> Proposal | None:
        """Propose what the compute lane should run after what it has; called again until it is issued.

        `barred`: its proposals that there is no room for now, nor on the way: something else is wanted.
        """
        ...

    def issued(self, inst: Instance, proposal: Proposal, turn: Issued) -> None:
        """The proposal is on the lane (perhaps with fewer steps or sequences)."""
        ...

    def unissued(self, inst: Instance, seq: Sequence) -> None:
        """A turn with this sequence's prefill did not run to its end: it is to be scheduled again. Idempotent."""
        ...

    def outranks(self, inst: Instance, seq: Sequence, turn: Issued, now: float) -> bool:
        """Return whether a prompt that has just come is to run before a decode turn of the lane, though that was
        issued."""
        ...


class Victims(Protocol):
    """Who makes room."""

    def unload_order(self, inst: Instance, idle: list[Weights]) -> list[Weights]:
        """Idle models in the order in which they are unloaded."""
        ...

    def preemption_order(self, inst: Instance, sequences: list[Sequence], now: float) -> Iterable[Sequence]:
        """Sequences in preemption order: most slack first."""
        ...

    def past_host(self, inst: Instance) -> bool:
        """Return whether weights that a load reads from disk must not take the place of others in host memory."""
        ...


class Policy(Placement, Dispatch, Victims, Protocol):
    """All three, over tables of its own that it brings up to date where it is notified."""

    name: str

    def instance_down(self, inst: Instance) -> None:
        """Drop an instance that is gone; its sequences are forgotten one by one."""
        ...

    def reshaped(self, model: Model) -> None:
        """The model's footprint or its objective has changed."""
        ...

    def check(self, now: float) -> list[str]:
        """List the differences between what is kept from one event to the next and what would be computed from
        scratch."""
        ...
