"""Copies on native lanes, one per rank. Waits release the GIL; a cancelled command stops its copy at the next chunk."""

from __future__ import annotations

from typing import NamedTuple

from aegaeon_native import BlockPool, CopyLane, Event, EventTable, NativeError, Range, SlabPool
from aegaeon_sidecar.domain.errors import EngineError
from aegaeon_sidecar.domain.program import AnyCommand
from aegaeon_sidecar.memory.cache_blocks import Blocks
from aegaeon_sidecar.memory.gpu import Gpus

_LOOK_S = 60.0
_STUCK = f"a copy did not end within {_LOOK_S:g} s; the machine is overloaded or its memory is gone"


class Units(NamedTuple):
    """Blocks cut into pieces of one size, so that none crosses the border of a slab: to[i] <- of[i]."""

    nbytes: int
    to: Blocks
    of: Blocks


def await_copy(event: Event) -> None:
    """Wait for a copy's event. Raises EngineError when the lane is stuck."""
    if not event.wait(_LOOK_S):
        raise EngineError(_STUCK)


class Copier:
    """One stream of copies on each rank, the same on all: of this machine's memory, or of a GPU.

    Used by one lane's thread; `cancel` and `finish` by any.
    """

    def __init__(self, name: str, events: EventTable, gpus: Gpus = (None,)) -> None:
        self._lanes = [CopyLane(name, device=gpu) for gpu in gpus]
        self._events = events

    def copy_image(self, command: AnyCommand, into: Range, image: int, part_bytes: int, first: int, end: int) -> None:
        """Queue bytes [first, end) of the ranks' parts, `part_bytes` each, of the image at this address."""
        for rank, (lane, to) in enumerate(zip(self._lanes, into.addresses, strict=True)):
            source = image + rank * part_bytes
            lane.copy(to + first, source + first, end - first, tag=command.tag)

    def copy_blocks(self, command: AnyCommand, into: BlockPool, to: Blocks, source: BlockPool, of: Blocks) -> None:
        """Queue block of[i] of `source` to block to[i] of `into`, for all i; both hold blocks of one size."""
        self._copy(into.addresses, source.addresses, Units(into.block_bytes, to, of), command.tag)

    def copy_units(self, command: AnyCommand, into: BlockPool, source: SlabPool, units: Units) -> None:
        """Queue pieces of blocks of another pool, numbered on both sides in pieces of one size."""
        self._copy(into.addresses, source.addresses, units, command.tag)

    def queue_blocks(self, into: BlockPool, to: Blocks, source: BlockPool, of: Blocks) -> None:
        """Queue blocks as `copy_blocks` does, for no command: nothing cancels it."""
        self._copy(into.addresses, source.addresses, Units(into.block_bytes, to, of), 0)

    def begin(self, into: BlockPool, to: Blocks, source: BlockPool, of: Blocks) -> Event:
        """Queue blocks for no command. The event says that the copy is over."""
        self.queue_blocks(into, to, source, of)
        first, *rest = self._lanes
        for lane in rest:
            over = self._events.event()
            lane.record(over)
            first.wait(over)
        event = self._events.event()
        first.record(event)
        return event

    def finish(self) -> None:
        """Wait until everything queued is done or stopped, on all ranks: one that failed says nothing of the others.

        Raises EngineError when a lane is stuck, else NativeError where a copy failed.
        """
        failures, stuck = [], False
        for lane in self._lanes:
            try:
                stuck |= not lane.synchronize(_LOOK_S)
            except NativeError as error:
                failures.append(error)
        if stuck:
            raise EngineError(_STUCK) from next(iter(failures), None)
        if failures:
            raise failures[0]

    def cancel(self, command: AnyCommand) -> None:
        for lane in self._lanes:
            lane.cancel(command.tag)

    def forget(self, command: AnyCommand) -> None:
        """Forget a cancelled command after its end."""
        for lane in self._lanes:
            lane.cancelled(command.tag)

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()

    def _copy(self, into: list[int], source: list[int], units: Units, tag: int) -> None:
        for lane, to, of in zip(self._lanes, into, source, strict=True):
            lane.copy_blocks(to, of, units.nbytes, units.to, units.of, tag=tag)
