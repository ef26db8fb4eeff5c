"""Settings of the interpreter in a scheduler's process, by which its event loop is not held up.

The core makes no reference cycles, and its tables are large: by default the collector's look that frees nothing comes
some times a second, and each takes milliseconds, or with all tables a tenth of a second, in which no call is answered.

Statuses and metrics are written by threads beside the loop. Whenever the loop reads or writes a socket, such a thread
may take the interpreter's lock, and gives it back after the switch interval: 5 ms by default, as long as a hundred
decisions.
"""

from __future__ import annotations

import gc
import sys

_YOUNG, _MIDDLE, _OLD = 50_000, 20, 10
_SWITCH_S = 0.0001


def relax() -> None:
    """Look after 50,000 objects more than before, instead of 700, and at all tables after 200 such looks."""
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def prefer_the_loop() -> None:
    """A thread that computes gives the lock back after 0.1 ms."""
    sys.setswitchinterval(_SWITCH_S)
