"""Engines that start: what they say before they can attach, for the clients that wait for one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from aegaeon_proto.v1 import engine_pb2

KEPT_S = 15.0  # after the last word of an engine; sidecars repeat theirs every few seconds
_MOST_CHARACTERS = 100  # of what one does


class Starting:
    """`changed` is called with a sentence about all of them, empty where there are none."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        self._changed = changed
        self._doing: dict[str, str] = {}
        self._suspects: dict[str, engine_pb2.SuspectDevice] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def note(self, announcement: engine_pb2.Announcement) -> None:
        """Note an announcement; it is valid until the engine attaches, or is silent for `KEPT_S`."""
        instance = announcement.instance
        self._cancel(instance)
        self._doing[instance] = announcement.doing[:_MOST_CHARACTERS]
        self._suspects.pop(instance, None)
        if announcement.HasField("suspect"):
            self._suspects[instance] = announcement.suspect
        self._timers[instance] = asyncio.get_running_loop().call_later(KEPT_S, self.end, instance)
        self._changed(self._sentence())

    def end(self, instance: str) -> None:
        """Remove an engine that attached or is gone. Idempotent."""
        self._cancel(instance)
        self._suspects.pop(instance, None)
        if self._doing.pop(instance, None) is not None:
            self._changed(self._sentence())

    def suspects(self) -> list[engine_pb2.SuspectDevice]:
        """Devices because of which engines do not attach, by the names of these."""
        return [device for _, device in sorted(self._suspects.items())]

    def stop(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()

    def _cancel(self, instance: str) -> None:
        if timer := self._timers.pop(instance, None):
            timer.cancel()

    def _sentence(self) -> str:
        """A sentence without times, since a status that contains it is rewritten at each change."""
        counts = sorted(Counter(self._doing.values()).items())
        return "; ".join(f"{_engines(count)} starting: {doing}" for doing, count in counts)


def _engines(count: int) -> str:
    return "an engine is" if count == 1 else f"{count} engines are"
