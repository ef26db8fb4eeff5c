"""Lines of logs: their times, which of them concern a model, and the merge of several pods' logs. Pure."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count

# Lines of our processes begin with a time, or are the JSON objects of an access log; what follows such a line without
# either belongs to it: a traceback, for example.
_BEGINS = re.compile(r"\d{4}-\d\d-\d\d[ T]|\{")
_LEADERSHIP = " aegaeon_kube.lease: "
At = tuple[datetime, str]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a pod's log. `time` is the kubelet's, RFC 3339, `at` the same to sort by, to the nanosecond."""

    at: At
    time: str
    pod: str
    text: str


def parse(pod: str, raw: str) -> Line:
    """Parse a line that begins with its time. Raises ValueError when it does not."""
    time, _, text = raw.partition(" ")
    fraction = re.search(r"\.(\d+)", time)
    return Line((datetime.fromisoformat(time), fraction[1].ljust(9, "0") if fraction else ""), time, pod, text)


def names(model: str) -> Callable[[str], bool]:
    """A test for texts that contain the name as a word: not as part of a longer name or of a path."""
    pattern = re.compile(rf"(?<![\w/.-]){re.escape(model)}(?![\w/-]|\.\w)")
    return lambda text: pattern.search(text) is not None


def touches(model: str) -> Callable[[str], bool]:
    """A test for lines that concern the model: they name it, or report a change of leader, which affects every
    model."""
    is_named = names(model)
    return lambda text: is_named(text) or _LEADERSHIP in text


def about(lines: Iterable[Line], is_named: Callable[[str], bool], then_all: bool = False) -> Iterator[Line]:
    """The entries of one pod's log that name a model, with their continuation lines; `then_all`: and all lines after
    the first of them. Each is yielded as soon as it is known, so that a log can be followed."""
    entry: list[Line] = []
    kept = False
    for line in lines:
        if not entry or _BEGINS.match(line.text):
            entry, kept = [], kept and then_all
        entry.append(line)
        if kept or is_named(line.text):
            yield from [line] if kept else entry
            kept = True


def merged(logs: Iterable[Iterable[Line]]) -> Iterator[Line]:
    """Merge logs by time; lines of one pod keep their order."""
    return heapq.merge(*logs, key=lambda line: line.at)


@dataclass(slots=True)
class Window:
    """Orders lines that arrive while their logs are followed: each waits `delay_s` for earlier ones of other pods."""

    delay_s: float
    _waiting: list[tuple[At, int, float, Line]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def put(self, line: Line, now: float) -> None:
        """Add a line that has arrived; `now` is monotonic, in seconds."""
        heapq.heappush(self._waiting, (line.at, next(self._numbers), now, line))

    def due(self, now: float) -> Iterator[Line]:
        """The lines that have waited long enough."""
        while self._waiting and now - self._waiting[0][2] >= self.delay_s:
            yield heapq.heappop(self._waiting)[3]
