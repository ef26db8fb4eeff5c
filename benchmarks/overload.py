"""One scheduler process with more engines than it can serve: what is accepted is served, and when the load falls all is
as before.

The load is that of benchmarks/wire.py: N engines and four models for each, 0.5 requests a second and model, and after
half a minute a tenth of that. Run with the number of engines where, without admission by lag, acceptance first took
more than a second; it measures these and twice as many: python -m benchmarks.overload [ENGINES].
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.core import quantile
from benchmarks.report import Row, report
from benchmarks.wire import scheduler
from benchmarks.wire_load import Load, OfEngines, OfGateways, attached, in_time_of_due

MODELS_EACH, RATE, LOW = 4, 0.5, 0.1
HIGH_S, LOW_S = 30.0, 15.0
SOON_S = 0.1  # within it requests are accepted where all is well
HALF = 96
WAIT_S, ON_TIME, RECOVERY_S = 1.0, 0.95, 2.0


@dataclass(frozen=True)
class Outcome:
    """Of a run: requests and tokens a second before the load falls, the rest in seconds and shares."""

    events: float
    process: float
    arrived: float
    accepted: float
    unanswered: int
    lost: int
    on_time: float
    tokens: float
    longest_s: float
    p99_s: float
    longest_refusal_s: float
    recovered_s: float
    engines: float
    gateways: float
    late_s: float


def outcome(load: Load, events: float, process: float, engines: OfEngines, gateways: OfGateways) -> Outcome:
    """Of what the three processes report."""
    waits, refused, requests = gateways["waits"], gateways["refused"], load.requests()
    before = [each for each in requests if each.at < HIGH_S]
    accepted = [each.request for each in before if each.request in waits and each.request not in refused]
    in_time, due = in_time_of_due(engines["tokens"][request] for request in accepted)
    after = [each for each in requests if HIGH_S <= each.at < HIGH_S + LOW_S - WAIT_S]  # the last ones wait at the end
    late = [each.at for each in after if waits.get(each.request, SOON_S + 1.0) > SOON_S]
    answered_s = [waits[request] for request in accepted] or [0.0]
    return Outcome(
        events=events, process=process, arrived=len(before) / HIGH_S, accepted=len(accepted) / HIGH_S,
        unanswered=sum(each.request not in waits and each.request not in refused for each in before),
        lost=gateways["lost"], on_time=in_time / max(1, due), tokens=in_time / HIGH_S,
        longest_s=max(answered_s), p99_s=quantile(answered_s, 0.99),
        longest_refusal_s=max(refused.values(), default=0.0), recovered_s=max(late, default=HIGH_S) - HIGH_S,
        engines=engines["share"], gateways=gateways["share"], late_s=gateways["latest_s"],
    )  # fmt: skip


async def measure(engines: int) -> Outcome:
    """A fresh scheduler, the load, and what it says of itself in the second half of the time of high load."""
    load = Load(engines, engines * MODELS_EACH, ((RATE, HIGH_S), (RATE * LOW, LOW_S)))
    async with scheduler(load.models) as serving, attached(serving.target, load) as processes:
        await processes.begin()
        await asyncio.sleep(HIGH_S / 2)
        (_, events), cpu_s, began = serving.core_s(), serving.cpu_s(), time.perf_counter()
        await asyncio.sleep(HIGH_S / 2 - 1.0)
        events, took_s = serving.core_s()[1] - events, time.perf_counter() - began
        process = (serving.cpu_s() - cpu_s) / took_s
        return outcome(load, events / took_s, process, *await processes.ended())


def rows(engines: int) -> Iterator[Row]:
    """Both runs, and how the second compares with the first."""
    half, full = (asyncio.run(measure(count)) for count in (engines, 2 * engines))
    for count, run in ((engines, half), (2 * engines, full)):
        name = f"{count} engines"
        yield Row(f"{name}: events", run.events, "events/s")
        yield Row(f"{name}: scheduler process", run.process, "of a core")
        yield Row(f"{name}: an event", run.process / max(1.0, run.events) * 1e6, "CPU us")
        yield Row(f"{name}: requests that arrive", run.arrived, "requests/s")
        yield Row(f"{name}: requests, accepted", run.accepted, "requests/s")
        yield Row(f"{name}: requests without an answer", run.unanswered, "requests", 0.0, "<=")
        yield Row(f"{name}: requests that lost their engine", run.lost, "requests")
        yield Row(f"{name}: tokens on time, of those due of what is accepted", run.on_time * 100, "%")
        yield Row(f"{name}: tokens on time", run.tokens, "tokens/s")
        yield Row(f"{name}: longest wait of what is accepted", run.longest_s, "s", WAIT_S, "<=")
        yield Row(f"{name}: wait of what is accepted, p99", run.p99_s, "s")
        yield Row(f"{name}: longest wait of what is refused", run.longest_refusal_s, "s")
        yield Row(f"{name}: load falls to a tenth, accepted within 0.1 s again", run.recovered_s, "s", RECOVERY_S, "<=")
        yield Row(f"{name}: the engines' process", run.engines, "of a core")
        yield Row(f"{name}: the gateways' process", run.gateways, "of a core")
        yield Row(f"{name}: submitted late, at most", run.late_s, "s")
    yield Row(
        "tokens on time of what is accepted, beside half the load", full.on_time, "share", half.on_time, ">=", ON_TIME
    )


def main() -> int:
    """See the module."""
    half = int(sys.argv[1]) if sys.argv[1:] else HALF
    return 0 if report("overload", list(rows(half)), short=half < HALF) else 1


if __name__ == "__main__":
    sys.exit(main())
