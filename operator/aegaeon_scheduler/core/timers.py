"""Timers of the core, which has no clock: pending deadlines in order; `Wake` asks the driver for a Tick."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import inf

from aegaeon_scheduler.core.commands import Wake
from aegaeon_scheduler.core.domain import Held, InstanceId, SeqId, Stage
from aegaeon_scheduler.core.phases import STAGE_DECODE, STAGE_LOST
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Sequence


class Timers:
    """Queues by time, two of constant delay that stay sorted by themselves, and the end of the start."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._holds: list[tuple[float, int, Sequence]] = []  # a heap: holds depend on objectives
        self._losses: deque[tuple[float, Sequence]] = deque()
        self._leases: deque[tuple[float, InstanceId, SeqId, Held]] = deque()
        self._awaiting_reattach = False
        self._armed: float | None = None

    def hold(self, seq: Sequence, until: float) -> None:
        """A sequence begins to wait for its prefill, or for the room to be handed off: until this time at most."""
        seq.held_until = until
        if until < inf:
            heappush(self._holds, (until, seq.order, seq))

    def lost(self, seq: Sequence) -> None:
        """A sequence begins to wait for its gateway."""
        seq.held_until = self._pool.now + self._pool.config.lost_lease_s
        self._losses.append((seq.held_until, seq))

    def lease(self, instance: InstanceId, held: Held) -> None:
        """An instance holds a sequence that no gateway has claimed."""
        self._leases.append((self._pool.now + self._pool.config.held_lease_s, instance, held.seq, held))

    def await_reattach(self) -> None:
        """A sequence begins to wait for the instance that may still hold it."""
        self._awaiting_reattach = True

    def reattach_ended(self) -> bool:
        """True once, when the wait for attachments has just ended."""
        ended = self._awaiting_reattach and self._pool.now >= self._pool.reattach_deadline
        self._awaiting_reattach = self._awaiting_reattach and not ended
        return ended

    def due(self) -> tuple[list[Sequence], list[Sequence], list[tuple[InstanceId, Held]]]:
        """The sequences whose time has run out: never prefilled, lost and unclaimed ones."""
        now = self._pool.now
        holds, losses, leases = [], [], []
        while self._holds and self._holds[0][0] <= now:
            at, _, seq = heappop(self._holds)
            if not self._held(seq) or seq.held_until != at:
                continue
            if seq.copy is not None or seq.turns or (seq.kv_tokens and self._goes_on(seq)):
                self.hold(seq, now + self._pool.config.hold_s)  # something is done for it, or was: that is kept
                continue
            seq.held_until = 0.0  # queued twice at one time it is here twice
            holds.append(seq)
        while self._losses and self._losses[0][0] <= now:
            at, seq = self._losses.popleft()
            if self._live(seq, STAGE_LOST) and seq.held_until == at:
                losses.append(seq)
        while self._leases and self._leases[0][0] <= now:
            _, instance, _, held = self._leases.popleft()
            leases.append((instance, held))
        return holds, losses, leases

    def _goes_on(self, seq: Sequence) -> bool:
        """True when an engine can take it over from the one that prefilled it."""
        return not self._pool.fleet.of(seq.model).halved

    def _held(self, seq: Sequence) -> bool:
        waits = seq.stage is not STAGE_DECODE and seq.stage is not STAGE_LOST
        return waits and self._pool.sequences.get(seq.id) is seq

    def _live(self, seq: Sequence, stage: Stage) -> bool:
        return seq.stage is stage and self._pool.sequences.get(seq.id) is seq

    def ticked(self) -> None:
        """A Wake has been answered: the one that is armed, or one of before that was overtaken."""
        if self._armed is not None and self._pool.now >= self._armed:
            self._armed = None

    def arm(self) -> None:
        """Ask for the earliest Tick that is needed, once."""
        self._drop_stale()
        at = inf if self._pool.pass_at is None else self._pool.pass_at
        if self._awaiting_reattach:
            at = min(at, self._pool.reattach_deadline)
        for queue in (self._holds, self._losses, self._leases):
            if queue and queue[0][0] < at:
                at = queue[0][0]
        if at < (inf if self._armed is None else self._armed):
            self._armed = at
            self._pool.out.append(Wake(at))

    def _drop_stale(self) -> None:
        while self._holds and not self._held(self._holds[0][2]):
            heappop(self._holds)
        while self._losses and not self._live(self._losses[0][1], STAGE_LOST):
            self._losses.popleft()
