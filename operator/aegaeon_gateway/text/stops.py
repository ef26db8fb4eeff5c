"""Stop strings in a stream of text: they may begin and end anywhere, and no part of one may reach the client.

Only the longest end of the text that may still become a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Cuts a stream of text at the stop string that is complete first; of several that end there, at the longest.

    The result does not depend on how the text is cut into pieces.
    """

    __slots__ = ("_held", "_stops", "matched")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """Take the next piece; return what may be shown. Once `matched` is set there is nothing more to show."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        text = self._held + text
        if hit := self._first_match(text):
            start, self.matched = hit
            self._held = ""
            return text[:start]
        keep = self._possible_prefix(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text has ended: what was held back was no stop string."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        found = [(text.find(stop), stop) for stop in self._stops]
        hits = [(at + len(stop), at, stop) for at, stop in found if at >= 0]
        if not hits:
            return None
        _, start, stop = min(hits)
        return start, stop

    def _possible_prefix(self, text: str) -> int:
        longest = max(len(stop) for stop in self._stops) - 1
        for length in range(min(longest, len(text)), 0, -1):
            tail = text[len(text) - length :]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
