"""Streams that say nothing for long, and how they are kept: proxies and clients take a silent connection for dead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aegaeon_gateway.models.catalog import why_not_ready
from aegaeon_proto.v1.gateway_pb2 import ModelStatus

HELD = "waiting for the quota of tokens a minute, which is used up"
"""what a stream says that its quota holds"""


def waiting(place: int, model: ModelStatus | None) -> str:
    """The comment of a stream that waits; `place` in the queue, 0: in none, or not known. `model`: as the scheduler has
    it; None: not any more."""
    text = f"waiting for an engine, place {place} in the queue" if place else "waiting for an engine"
    why = why_not_ready(model) if model is not None else ""
    return f"{text} ({why})" if why else text


class Silence:
    """Calls `wake` when nothing was written for `every_s` at least, twice as long at most; `due` is True then.

    One timer for each stream, set anew once a period: a token costs an addition. Use inside `with`.
    """

    def __init__(self, every_s: float, wake: Callable[[], None]) -> None:
        self.due = False
        self._every_s = every_s
        self._wake = wake
        self._writes = 0
        self._seen = 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Silence:
        self._set()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def wrote(self) -> None:
        """Something went out."""
        self._writes += 1
        self.due = False

    def _set(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._look)

    def _look(self) -> None:
        if self._writes == self._seen:
            self.due = True
            self._wake()
        self._seen = self._writes
        self._set()
