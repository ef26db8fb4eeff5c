"""The program of a modelled engine: commands queued by lane, the running command of each lane, and all results."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core.domain import CommandId, SeqId
from aegaeon_simulator.engine.spec import LANES, lane_of
from aegaeon_simulator.errors import WireViolationError


class Lanes:
    """A queue and at most one running command for each lane."""

    def __init__(self) -> None:
        self.queues: dict[str, deque[cmd.Send]] = {lane: deque() for lane in LANES}
        self.active: dict[str, cmd.Send | None] = dict.fromkeys(LANES)
        self._ended: dict[CommandId, bool | None] = {}  # None: pending; True: done; False: failed
        self._last_id = 0

    def accept(self, send: cmd.Send) -> str | None:
        """Queue the command on its lane, which is returned; None for one that acts at once, and is done with that."""
        if send.id <= self._last_id:
            raise WireViolationError(f"command id {send.id} does not rise")
        self._last_id = send.id
        for id in send.after:
            if id not in self._ended:
                raise WireViolationError(f"command {send.id} waits for {id}, which was never issued here")
        lane = lane_of(send.body)
        if lane is None:
            self._ended[send.id] = True
            return None
        self._ended[send.id] = None
        self.queues[lane].append(send)
        if lane == "compute" and sum(map(_runs, [self.active[lane], *self.queues[lane]])) > 2:
            raise WireViolationError("more than two turns on the compute lane")
        return lane

    def failed_before(self, send: cmd.Send) -> CommandId | None:
        """The first command that this one waits for and that failed."""
        return next((id for id in send.after if self._ended[id] is False), None)

    def waits(self, send: cmd.Send) -> bool:
        """True when a command that this one waits for is pending."""
        return any(self._ended[id] is None for id in send.after)

    def end(self, id: CommandId, done: bool) -> None:
        """The command has ended, or was skipped."""
        self._ended[id] = done

    def clear(self) -> None:
        """Drop the commands that have not begun."""
        for queue in self.queues.values():
            queue.clear()

    def busy(self) -> bool:
        """True while any lane has work."""
        return any(send is not None for send in self.active.values())

    def copying(self) -> bool:
        """True while weights or KV are copied by command."""
        return any(self.active[lane] is not None for lane in ("weights", "in", "out"))

    def bring_in(self, sequences: Iterable[SeqId]) -> bool:
        """True when a copy of one of these sequences to the device is queued."""
        chosen = set(sequences)
        return any(isinstance(s.body, (cmd.SwapIn, cmd.Adopt)) and s.body.seq in chosen for s in self.queues["in"])

    def amend(self, body: cmd.Amend) -> None:
        """Change a turn that is queued, or what is known of the running one."""
        queue, running = self.queues["compute"], self.active["compute"]
        if running is not None and running.id == body.turn:
            self.active["compute"] = _amended(running, body)
        for i, send in enumerate(queue):
            if send.id == body.turn:
                queue[i] = _amended(send, body)


def _runs(send: cmd.Send | None) -> bool:
    """True when a turn has work to do: one amended to no steps ends as it begins, or at once."""
    if send is None or not isinstance(send.body, cmd.Turn):
        return False
    return bool(send.body.steps or send.body.prefill or send.body.warm_up)


def _amended(send: cmd.Send, change: cmd.Amend) -> cmd.Send:
    t = send.body
    assert isinstance(t, cmd.Turn)
    decode = tuple(s for s in (*t.decode, *change.join) if s not in change.leave)
    steps = t.steps if change.steps is None else change.steps
    parts = tuple(p for p in t.prefill if p.seq not in change.leave) if steps or change.steps is None else ()
    changed = replace(t, prefill=parts, decode=decode, steps=steps, slabs=t.slabs + change.slabs)
    return replace(send, body=changed)
