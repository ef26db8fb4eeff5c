"""The weights in a node's host memory, shared by its devices. Other weights are first read from the node's disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aegaeon_scheduler.core.domain import ModelName
from aegaeon_simulator.clock import Clock
from aegaeon_simulator.engine.links import Node


class HostCache:
    """Least recently loaded goes first. Its disk gives `disk_bytes_per_s` to all reads together."""

    def __init__(
        self,
        clock: Clock,
        room_bytes: int,
        disk_bytes_per_s: float,
        changed: Callable[[tuple[ModelName, ...]], None] = lambda held: None,
    ) -> None:
        self._changed = changed
        self._room = room_bytes
        self._rate = disk_bytes_per_s
        self._disk = Node(clock, disk_bytes_per_s)
        self._held: dict[ModelName, int] = {}
        self._reading: dict[ModelName, list[Callable[[], None]]] = {}

    def warm(self, models: Iterable[tuple[ModelName, int]]) -> set[ModelName]:
        """Begin with these (name, bytes), as many as fit."""
        for name, nbytes in models:
            if name not in self._held and nbytes <= self._room:
                self._room -= nbytes
                self._held[name] = nbytes
        self._changed(tuple(self._held))
        return set(self._held)

    def want(self, name: ModelName, nbytes: int, then: Callable[[], None], past: bool = False) -> bool:
        """Call `then` once the weights are in host memory: at once, which returns True, or after they were read.

        They stay there, and the least recently loaded make room; with `past` only if there is room.
        """
        if name in self._held:
            self._held[name] = self._held.pop(name)
            then()
            return True
        waiting = self._reading.get(name)
        if waiting is not None:
            waiting.append(then)
        else:
            self._reading[name] = [then]
            self._disk.copy(nbytes, self._rate, lambda: self._arrived(name, nbytes, past))
        return False

    def _arrived(self, name: ModelName, nbytes: int, past: bool) -> None:
        while not past and self._held and self._room < nbytes:
            self._room += self._held.pop(next(iter(self._held)))
        if self._room >= nbytes:
            self._room -= nbytes
            self._held[name] = nbytes
            self._changed(tuple(self._held))
        for then in self._reading.pop(name):
            then()
