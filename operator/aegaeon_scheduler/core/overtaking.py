"""A prompt that has just come, and is due before what its instance has on the lane, waits for one decode step.

The queued turn ends before it begins, and the running one at its next token boundary.
"""

from __future__ import annotations

from aegaeon_scheduler.core.commands import Amend
from aegaeon_scheduler.core.policies import Policy
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.state import Instance, Issued, Sequence


class Overtaking:
    """Amends decode turns for `Instance.newcomer`. What they have not computed is proposed again."""

    def __init__(self, pool: Pool, policy: Policy) -> None:
        self._pool = pool
        self._policy = policy

    def make_room(self, inst: Instance) -> None:
        """Before the lane is filled: where it is full, its last turn may make room for the newcomer's."""
        seq = inst.newcomer
        if seq is None or seq.home is not inst or seq.turns or inst.lane_length < self._pool.config.lane_depth:
            return
        last = inst.turns[-1]
        if last is not inst.turns[0] and self._outranks(inst, seq, last):
            last.dropped = True
            self._amend(inst, last, 0, f"{seq.model.name} is due before")
            for member in last.members.values():
                if member.copy is None:
                    member.project(_projected(inst, member))

    def go_ahead(self, inst: Instance) -> None:
        """Once the lane is filled: where the newcomer's turn is the next one, the running turn may end early."""
        seq, inst.newcomer = inst.newcomer, None
        if seq is None or len(inst.turns) < 2 or inst.turns[-1].id not in seq.turns:
            return
        first = inst.turns[0]
        if first.steps - first.steps_done > 1 and self._outranks(inst, seq, first):
            self._amend(inst, first, 1, f"{seq.model.name} is due before")

    def _outranks(self, inst: Instance, seq: Sequence, turn: Issued) -> bool:
        if turn.prefills or turn.alone or not turn.steps:
            return False
        return self._policy.outranks(inst, seq, turn, self._pool.now)

    def _amend(self, inst: Instance, turn: Issued, steps: int, reason: str) -> None:
        turn.steps = steps
        turn.shortened = True
        self._pool.send(inst, Amend(turn.id, steps=steps), reason)


def correct(inst: Instance, ended: Issued) -> None:
    """A turn that was shortened is over: its members have less KV than was expected, whatever turns are still out."""
    if ended.shortened:
        for seq in ended.members.values():
            if seq.turns and seq.copy is None:
                seq.project(_projected(inst, seq))


def _projected(inst: Instance, seq: Sequence) -> int:
    """Its KV after the turns that it is in, by what was reported last."""
    left = seq.max_tokens - seq.output_tokens
    steps = sum(t.steps - t.steps_done for t in inst.turns if seq.id in t.members and not t.dropped)
    return seq.kv_tokens + max(0, min(steps, left))
