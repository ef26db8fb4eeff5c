"""Where the time of an answer went, for its client: the parts of Server-Timing, which browsers' tools draw as well."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

_NAMES = ("queue", "load", "prefill", "first", "stall", "total")


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. `first_s` is from the arrival to the first token: queue, load and prefill together.

    `load_s`: it waited for its model's weights; `stall_s`: after its first token, for its model's turns; `total_s`: to
    its last token.
    """

    queue_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0
    first_s: float = 0.0
    stall_s: float = 0.0
    total_s: float = 0.0

    @staticmethod
    def of(first_s: float, total_s: float, load_s: float, prefill_s: float, stall_s: float) -> Timing:
        """The wait in the queue is what engines do not account for."""
        return Timing(max(first_s - load_s - prefill_s, 0.0), load_s, prefill_s, first_s, stall_s, total_s)

    @property
    def header(self) -> str:
        """The value of Server-Timing, milliseconds."""
        parts = zip(_NAMES, astuple(self), strict=True)
        return ", ".join(f"{name};dur={1000 * seconds:.1f}" for name, seconds in parts)


def longest(timings: Iterable[Timing]) -> Timing:
    """The longest of each part, of choices side by side; zeros without any."""
    parts = [astuple(timing) for timing in timings]
    return Timing(*map(max, zip(*parts, strict=True))) if parts else Timing()
