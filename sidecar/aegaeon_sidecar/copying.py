"""Copies on a native lane, waited for without the GIL, stopped at the next chunk when their command is cancelled."""

from __future__ import annotations

from aegaeon_native import BlockPool, CopyLane, CudaDevice, Event, EventTable
from aegaeon_sidecar.errors import EngineError
from aegaeon_sidecar.kv.handles import Units
from aegaeon_sidecar.memory.eviction import Blocks
from aegaeon_sidecar.state import Command

_LOOK_S = 60.0
_STUCK = f"a copy did not end within {_LOOK_S:g} s; the machine is overloaded or its memory is gone"


def await_copy(event: Event) -> None:
    """Wait for a copy's event. Raises EngineError when the lane is stuck."""
    if not event.wait(_LOOK_S):
        raise EngineError(_STUCK)


class Copier:
    """One stream of copies: of this machine's memory, or of a GPU. Used by one lane's thread; `cancel` by any."""

    def __init__(self, name: str, events: EventTable, gpu: CudaDevice | None = None, urgency: int = 0) -> None:
        """`urgency`: 0 to 5, of its kernels among all that a GPU has to do; its copy engines take turns regardless."""
        self._lane = CopyLane(name, device=gpu, priority=-urgency)
        self._events = events

    def copy(self, command: Command, dst: int, src: int, nbytes: int) -> None:
        """Queue bytes from address to address."""
        self._lane.copy(dst, src, nbytes, tag=command.id)

    def copy_blocks(self, command: Command, into: BlockPool, to: Blocks, source: BlockPool, of: Blocks) -> None:
        """Queue block of[i] of `source` to block to[i] of `into`, for all i; both hold blocks of one size."""
        self._lane.copy_blocks(into.address, source.address, into.block_bytes, to, of, tag=command.id)

    def copy_units(self, command: Command, into: BlockPool, source: int, units: Units) -> None:
        """Queue pieces of blocks from the addresses at `source`, numbered on both sides in pieces of one size."""
        self._lane.copy_blocks(into.address, source, units.nbytes, units.to, units.of, tag=command.id)

    def begin(self, into: BlockPool, to: Blocks, source: BlockPool, of: Blocks) -> Event:
        """Queue blocks as `copy_blocks` does, for no command: nothing cancels it. The event says that it is over."""
        self._lane.copy_blocks(into.address, source.address, into.block_bytes, to, of)
        event = self._events.event()
        self._lane.record(event)
        return event

    def finish(self) -> None:
        """Wait until everything queued is done or stopped. Raises EngineError when the lane is stuck."""
        if not self._lane.synchronize(_LOOK_S):
            raise EngineError(_STUCK)

    def cancel(self, command: Command) -> None:
        self._lane.cancel(command.id)

    def close(self) -> None:
        self._lane.close()
