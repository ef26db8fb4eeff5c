"""The one lock of an engine and what its threads sleep on.

Held for bookkeeping alone, never during a step or a copy. `weights.held` alone takes it inside a lock of its own.
A command that changes what another lane may wait for notifies once, at its end: each lane that wakes costs the others
time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from aegaeon_sidecar.domain.program import AnyCommand


@dataclass(slots=True)
class Monitor:
    """`changed`: the lock and its condition; `stopping`: the engine ends, no lane begins anything."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    stopping: bool = False

    def wait(self, ready: Callable[[], bool], command: AnyCommand) -> bool:
        """Sleep (lock held) until `ready`; False when the command was cancelled or the engine stops first."""
        self.changed.wait_for(lambda: ready() or command.cancelled or self.stopping)
        return ready() and not command.cancelled and not self.stopping

    def notify(self) -> None:
        """Something changed that lanes may wait for."""
        with self.changed:
            self.changed.notify_all()

    def sleep(self, command: AnyCommand) -> bool:
        """Sleep (lock held) until something changes; False when the command was cancelled or the engine stops."""
        if not command.cancelled and not self.stopping:
            self.changed.wait()
        return not command.cancelled and not self.stopping
