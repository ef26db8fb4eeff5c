"""A workload as plain values: its models and their kinds, and the time and length of each request."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf

from aegaeon_scheduler.core.domain import ALIKE, Terms
from aegaeon_simulator.workload.errors import WorkloadError


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. Seconds since the start of the trace; lengths in tokens. `tenant`: whose it is; `session`: its
    requests follow each other, each once the answer before has ended; `defer_s`: seconds by which it is due later;
    `terms`: its tier, and its tenant's weight, among the requests for its model; `pause_s`: seconds after the answer
    before it in its session; `shared_tokens`: with which all prompts of its tenant for its model begin."""

    t_s: float
    model: int
    input_tokens: int
    output_tokens: int
    tenant: str = ""
    session: str = ""
    defer_s: float = 0.0
    terms: Terms = ALIKE
    pause_s: float = 0.0
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Workload:
    """`kinds[m]` is the kind of model m (a name of the latency constants), `terms[m]` its tier and weight, where such
    are given; arrivals are in order of time."""

    kinds: tuple[str, ...]
    arrivals: tuple[Arrival, ...]
    given_names: tuple[str, ...] = ()
    terms: tuple[Terms, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The model names of the trace; their numbers when it has no names."""
        return self.given_names or tuple(str(m) for m in range(len(self.kinds)))

    def first_models(self, count: int) -> Workload:
        """The first `count` models and their requests: how the paper's artifact scales its own traces."""
        if not 0 < count <= len(self.kinds):
            raise WorkloadError(f"the workload has {len(self.kinds)} models, {count} were asked for")
        kept = tuple(arrival for arrival in self.arrivals if arrival.model < count)
        return Workload(self.kinds[:count], kept, self.given_names[:count], self.terms[:count])

    def scaled(self, *, time: float = 1.0, input_tokens: float = 1.0, output_tokens: float = 1.0) -> Workload:
        """Times divided by `time` (2: twice the load), lengths multiplied; no length falls below one token."""
        if not all(0 < scale < inf for scale in (time, input_tokens, output_tokens)):
            raise WorkloadError("scales must be greater than 0 and finite")
        arrivals = (
            replace(
                a,
                t_s=a.t_s / time,
                input_tokens=_scale(a.input_tokens, input_tokens),
                output_tokens=_scale(a.output_tokens, output_tokens),
                pause_s=a.pause_s / time,
                shared_tokens=round(a.shared_tokens * input_tokens),
            )
            for a in self.arrivals
        )
        return replace(self, arrivals=tuple(arrivals))

    def window(self, duration_s: float) -> Workload:
        """The arrivals before `duration_s`."""
        return replace(self, arrivals=tuple(a for a in self.arrivals if a.t_s < duration_s))

    def capped(self, input_tokens: int, output_tokens: int) -> Workload:
        """Cut lengths to the models' context."""
        cut = (
            replace(
                a, input_tokens=min(a.input_tokens, input_tokens), output_tokens=min(a.output_tokens, output_tokens)
            )
            for a in self.arrivals
        )
        return replace(self, arrivals=tuple(cut))


def in_order(kinds: Iterable[str], arrivals: Iterable[Arrival]) -> Workload:
    """A workload with its arrivals sorted by time; equal times keep the order given."""
    return Workload(tuple(kinds), tuple(sorted(arrivals, key=lambda a: a.t_s)))


def _scale(tokens: int, factor: float) -> int:
    return max(1, round(tokens * factor))
