"""The one lock of an engine and what its threads sleep on.

Held for bookkeeping alone, never during a step or a copy, and never taken inside another lock.
Each thread that wakes costs the others time. So a thread that changes something looks which others may go on: a step
wakes no lane without work, and none whose command has to wait further.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from aegaeon_sidecar.domain.program import AnyCommand, AnyProgram, Lane

Ready = Callable[[], bool]


class Monitor:
    """`changed`: the lock, and what `sleep` sleeps on; `queued`: the same lock, and what each idle lane sleeps on;
    `spare`: returns whether a lane has work that is no command; `stopping`: the engine ends, no lane begins
    anything."""

    __slots__ = ("_lock", "_waiting", "changed", "queued", "spare", "stopping")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self.queued = {lane: threading.Condition(self._lock) for lane in Lane}
        self.spare: dict[Lane, Ready] = {}
        self._waiting: list[tuple[Ready, threading.Condition]] = []
        self.stopping = False

    def wait(self, ready: Ready, command: AnyCommand) -> bool:
        """Sleep (lock held) until `ready`; False when the command was cancelled or the engine stops first."""
        self.wait_until(lambda: ready() or command.cancelled)
        return ready() and not command.cancelled and not self.stopping

    def wait_until(self, ready: Ready) -> None:
        """Sleep (lock held) until `ready`, which others evaluate whenever they notify, or the engine stops."""
        waiter = (ready, threading.Condition(self._lock))
        self._waiting.append(waiter)
        try:
            waiter[1].wait_for(lambda: self.stopping or ready())
        finally:
            self._waiting.remove(waiter)

    def sleep(self, command: AnyCommand) -> bool:
        """Sleep (lock held) until something changes; False when the command was cancelled or the engine stops."""
        if not command.cancelled and not self.stopping:
            self.changed.wait()
        return not command.cancelled and not self.stopping

    def notify(self) -> None:
        """Something changed that threads may wait for."""
        with self.changed:
            self.changed.notify_all()
            for ready, condition in self._waiting:
                if self.stopping or ready():
                    condition.notify()

    def notify_lanes(self, program: AnyProgram) -> None:
        """Commands were queued, ended or dropped: lanes begin those that may start now, too, and work that had to wait
        for those."""
        with self.changed:
            self.notify()
            for lane, condition in self.queued.items():
                if self.stopping or program.head(lane) is not None:
                    condition.notify()
            for lane, ready in self.spare.items():  # few: a look-up by each lane would hash it, in Python
                if ready():
                    self.queued[lane].notify()
