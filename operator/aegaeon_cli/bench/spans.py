"""The activity of a lane over time: the common input of the text and SVG output."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

LANES = ("weights", "kv-out", "kv-in", "compute")


@dataclass(frozen=True, slots=True)
class Span:
    """`what` is unload, map, load, swap-out, swap-in, adopt, step, busy, stalled or switching; seconds on one clock."""

    lane: str
    what: str
    model: str
    begin_s: float
    end_s: float
    nbytes: int = 0

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


def shifted(spans: Iterable[Span], zero_s: float) -> list[Span]:
    """The same spans with `zero_s` as the origin of time, in order of their begin."""
    moved = [replace(span, begin_s=span.begin_s - zero_s, end_s=span.end_s - zero_s) for span in spans]
    return sorted(moved, key=lambda span: (span.begin_s, span.end_s))


def extent(spans: Iterable[Span]) -> tuple[float, float]:
    """The first begin and the last end."""
    some = list(spans)
    return min(span.begin_s for span in some), max(span.end_s for span in some)


def merged(spans: Iterable[Span], gap_s: float = 0.0) -> list[Span]:
    """Join neighbouring spans of one lane, kind and model that are at most `gap_s` apart."""
    out: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.lane, span.begin_s)):
        last = out[-1] if out else None
        alike = last is not None and (last.lane, last.what, last.model) == (span.lane, span.what, span.model)
        if last is not None and alike and span.begin_s - last.end_s <= gap_s:
            out[-1] = replace(last, end_s=max(last.end_s, span.end_s), nbytes=last.nbytes + span.nbytes)
        else:
            out.append(span)
    return out
