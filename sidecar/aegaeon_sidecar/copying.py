"""Copies on a native lane, waited for without the GIL, stopped at the next chunk when their command is cancelled."""

from __future__ import annotations

from aegaeon_native import BlockPool, CopyLane, EventTable
from aegaeon_sidecar.errors import EngineError
from aegaeon_sidecar.sequences import Blocks
from aegaeon_sidecar.state import Command

_LOOK_S = 60.0


class Copier:
    """One stream of copies. Used by one lane's thread; `cancel` by any."""

    def __init__(self, name: str, events: EventTable) -> None:
        self._lane = CopyLane(name)
        self._events = events

    def copy(self, command: Command, dst: int, src: int, nbytes: int) -> None:
        """Queue bytes from address to address."""
        self._lane.copy(dst, src, nbytes, tag=command.id)

    def copy_blocks(self, command: Command, into: BlockPool, to: Blocks, source: BlockPool, of: Blocks) -> None:
        """Queue block of[i] of `source` to block to[i] of `into`, for all i; both hold blocks of one size."""
        self._lane.copy_blocks(into.address, source.address, into.block_bytes, to, of, tag=command.id)

    def finish(self) -> None:
        """Wait until everything queued is done or stopped. Raises EngineError when the lane is stuck."""
        event = self._events.event()
        self._lane.record(event)
        if not event.wait(_LOOK_S):
            raise EngineError(
                f"a copy did not end within {_LOOK_S:g} s; the machine is overloaded or its memory is gone"
            )

    def cancel(self, command: Command) -> None:
        self._lane.cancel(command.id)

    def close(self) -> None:
        self._lane.close()
