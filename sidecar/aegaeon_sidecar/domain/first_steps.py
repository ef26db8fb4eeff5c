"""The kinds of steps of a model that have not run yet: the first of a kind compiles kernels and captures a graph."""

from __future__ import annotations

PREFILL = 0  # a kind; the others are decodes, by their least number of sequences


class FirstSteps:
    """First steps of a model. `decodes`: least numbers of sequences of the decodes that are captured each on its own, 1
    first.

    `cold`: its first steps take so long that they are worth doing ahead.
    """

    def __init__(self, decodes: tuple[int, ...] = ()) -> None:
        self._decodes = decodes or (1,)
        self._slow = decodes
        self._left = {PREFILL, *self._decodes}

    @property
    def cold(self) -> bool:
        """Returns whether a first step that takes long is to come."""
        return not self._left.isdisjoint(self._slow)

    @property
    def next(self) -> int | None:
        """The kind to do ahead next."""
        return min(self._left) if self.cold else None

    def kind(self, prefill: bool, sequences: int) -> int:
        """The kind of a step."""
        return PREFILL if prefill else max(least for least in self._decodes if least <= sequences)

    def ran(self, kind: int) -> bool:
        """A step of this kind has run; whether it was the first."""
        first = kind in self._left
        self._left.discard(kind)
        return first
