"""How long lines of a batch wait for a model that has failed: it may be repaired, but not for a whole window."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class _Seen:
    first: float
    last: float


class Patience:
    """`most_s`: from the first time that a sentence is said; `gap_s`: not said for so long, it begins anew.

    A sentence names the model and why it failed, so lines of one model share their patience.
    """

    def __init__(self, most_s: float, gap_s: float, clock: Callable[[], float]) -> None:
        self._most_s = most_s
        self._gap_s = gap_s
        self._clock = clock
        self._seen: dict[bytes, _Seen] = {}

    def is_over(self, sentence: bytes) -> bool:
        """Note that the sentence was an answer again; True when it is to be the last one."""
        now = self._clock()
        self._seen = {known: times for known, times in self._seen.items() if now - times.last <= self._gap_s}
        seen = self._seen.setdefault(sentence, _Seen(now, now))
        seen.last = now
        return now - seen.first >= self._most_s
