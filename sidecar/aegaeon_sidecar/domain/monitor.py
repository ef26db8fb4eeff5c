"""The one lock of an engine and what its threads sleep on.

Held for bookkeeping alone, never during a step or a copy. `weights.held` alone takes it inside a lock of its own.
A command that changes what another lane may wait for notifies once, at its end: each lane that wakes costs the others
time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from aegaeon_sidecar.domain.program import AnyCommand


class Monitor:
    """`changed`: the lock and its condition; `queued`: the same lock, and what idle lanes sleep on, so that a step
    wakes none of them; `stopping`: the engine ends, no lane begins anything."""

    __slots__ = ("changed", "queued", "stopping")

    def __init__(self) -> None:
        lock = threading.RLock()
        self.changed = threading.Condition(lock)
        self.queued = threading.Condition(lock)
        self.stopping = False

    def wait(self, ready: Callable[[], bool], command: AnyCommand) -> bool:
        """Sleep (lock held) until `ready`; False when the command was cancelled or the engine stops first."""
        self.changed.wait_for(lambda: ready() or command.cancelled or self.stopping)
        return ready() and not command.cancelled and not self.stopping

    def notify(self) -> None:
        """Something changed that lanes may wait for within a command."""
        with self.changed:
            self.changed.notify_all()

    def notify_lanes(self) -> None:
        """Commands were queued, ended or dropped: idle lanes look for their next one, too."""
        with self.changed:
            self.changed.notify_all()
            self.queued.notify_all()

    def sleep(self, command: AnyCommand) -> bool:
        """Sleep (lock held) until something changes; False when the command was cancelled or the engine stops."""
        if not command.cancelled and not self.stopping:
            self.changed.wait()
        return not command.cancelled and not self.stopping
