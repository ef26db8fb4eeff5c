"""Stop strings in a stream of text: they may begin and end anywhere, and no part of one may reach the client.

Only the longest end of the text that may still become a stop string is held back.
"""

from __future__ import annotations

from collections.abc import Sequence

from aegaeon_gateway.text.marks import first_mark, possible_mark


class StopScanner:
    """Cuts a stream of text at the stop string that is complete first; of several that end there, at the longest.

    The result does not depend on how the text is cut into pieces. `shown`: the stop string is part of what is shown.
    """

    __slots__ = ("_held", "_shown", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, shown: bool = False) -> None:
        self._stops = tuple(stops)
        self._shown = shown
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str, *, checked: bool = True) -> str:
        """Take the next piece; return what may be shown. Once `matched` is set there is nothing more to show.

        A stop string counts where it ends in a piece that is `checked`.
        """
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        before, text = len(self._held), self._held + text
        if checked and (hit := first_mark(text, self._stops, before)):
            start, self.matched = hit
            self._held = ""
            return text[: start + len(self.matched) if self._shown else start]
        keep = possible_mark(text, self._stops)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """The text has ended: what was held back was no stop string."""
        held, self._held = self._held, ""
        return held
