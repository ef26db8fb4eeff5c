"""One scheduler process with more engines than it can serve: what is accepted is served, and when the load falls all is
as before.

The load is that of benchmarks/wire.py: N engines and four models for each, 0.5 requests a second and model, and after
half a minute a tenth of that. Modelled engines are one process and eight gateways (their links to the scheduler, as
they are) another one, as a loop that is taken up by engines would itself hold requests up. Run with the number of
engines where, without admission by lag, acceptance first took more than a second; it measures these and twice as many:
python -m benchmarks.overload [ENGINES].
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle
from typing import Any, NamedTuple

from benchmarks.core import Size, arrivals, pool, quantile
from benchmarks.report import Row, report
from benchmarks.wire import scheduler
from benchmarks.wire_pool import GATEWAYS, NODE_ENGINES, Fleet
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from aegaeon_gateway.errors import UnavailableError
from aegaeon_gateway.generation.generation import Generation
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.metrics import Metrics
from aegaeon_gateway.models.catalog import Catalog
from aegaeon_gateway.request.prompt import Prompt
from aegaeon_gateway.rpc.link import SchedulerLink
from aegaeon_gateway.rpc.open_requests import OpenRequests
from aegaeon_gateway.tenancy import Tenants, TenantsFile
from aegaeon_gateway.text.detokenize import Vocabulary
from aegaeon_gateway.workers.wire import Options
from aegaeon_proto.v1.model_pb2 import FINISH_REASON_LENGTH, Limits, ModelSpec, Sampling
from aegaeon_scheduler.core.domain import ModelName, Role, SeqId
from aegaeon_simulator.pool.client import Client

MODELS_EACH, RATE, LOW = 4, 0.5, 0.1
HIGH_S, LOW_S = 30.0, 15.0
SOON_S = 0.1  # within it requests are accepted where all is well
HALF = 96
WAIT_S, ON_TIME, RECOVERY_S = 1.0, 0.95, 2.0
_MAX_TOKENS = 1 << 20
_PHASES = ((RATE, HIGH_S), (RATE * LOW, LOW_S))
_VOCABULARY = Vocabulary(Tokenizer(WordLevel({"a": 0}, unk_token="a")))


class Arrival(NamedTuple):
    """A request: its name, what it is, when it comes (seconds)."""

    request: str
    model: ModelName
    prompt: int
    length: int
    at: float


def requests(engines: int) -> list[Arrival]:
    """In order; the same in every process."""
    high, low = (Size(engines * MODELS_EACH, rate, seconds, NODE_ENGINES) for rate, seconds in _PHASES)
    models, _ = pool(high, [])
    all_of = [(each, 0.0) for each in arrivals(high, models)] + [(each, HIGH_S) for each in arrivals(low, models)]
    ordered = sorted(((*what, after + at) for (*what, at), after in all_of), key=lambda each: each[3])
    return [Arrival(f"r{number}", *each) for number, each in enumerate(ordered)]


# ---- the engines ----------------------------------------------------------------------------------------------------


class Engines(Fleet):
    """Modelled ones, which know every request before it comes."""

    def __init__(self, engines: int) -> None:
        size = Size(engines * MODELS_EACH, RATE, HIGH_S, NODE_ENGINES)
        super().__init__(*pool(size, [Role.UNIFIED] * engines))

    def begin(self, load: list[Arrival], start: float) -> None:
        """`start`: on this machine's monotonic clock."""
        for each in load:
            seq, arrival = SeqId(each.request, 0), start - self._began + each.at
            self.clients[seq] = Client(seq, each.model, each.prompt, each.length, _MAX_TOKENS, arrival)

    def due(self, client: Client, until_s: float) -> tuple[int, int]:
        """Of its tokens that are due so long after its arrival: how many came in time, and all."""
        slo = self.models[client.model][1]
        due = min(client.length, 1 + int((until_s - slo.ttft_s) / slo.tbt_s)) if until_s > slo.ttft_s else 0
        return sum(at <= slo.ttft_s + k * slo.tbt_s for k, at in enumerate(client.times[:due])), due


async def serve(target: str, engines: int) -> None:
    """Attach all, compute, and print of each request the tokens that were in time and due when the load fell."""
    load, fleet, tasks = requests(engines), Engines(engines), []
    for sidecar in fleet.sidecars.values():
        tasks.append(asyncio.create_task(sidecar.run(target)))
        await sidecar.attached.wait()
        fleet.advance()
        sidecar.heartbeat()
    print("attached", flush=True)
    reading = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    while not reading.done():
        fleet.advance()  # heartbeats
        await asyncio.sleep(0.01)
    start = float(await reading)
    fleet.begin(load, start)
    gc.collect()
    gc.freeze()
    cpu_s = time.process_time()
    while time.monotonic() < start + HIGH_S + LOW_S:
        fleet.advance()
        for broken in (task for task in tasks if task.done()):
            await broken
        await asyncio.sleep(0.002)
    share = (time.process_time() - cpu_s) / (HIGH_S + LOW_S)
    tokens = {each.request: fleet.due(fleet.clients[SeqId(each.request, 0)], HIGH_S - each.at) for each in load}
    print(json.dumps({"share": share, "tokens": tokens}), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- the gateways ---------------------------------------------------------------------------------------------------


@cache
def _prompt(tokens: int) -> Prompt:
    return Prompt.of(range(tokens))


class Submission(Generation):
    """A request whose tokens are not read: it is over when its engine says so."""

    def ended(self, number: int, epoch: int, now: float) -> None:
        self.choices[0].finish = FINISH_REASON_LENGTH
        self._changed()


class Gateways:
    """They submit, and note what becomes of each request: seconds until it was accepted, or that it was refused."""

    def __init__(self, target: str) -> None:
        self.metrics = Metrics()
        self.submitted: dict[str, float] = {}
        self.waits: dict[str, float] = {}
        self.refused: dict[str, tuple[float, float | None]] = {}
        self.lost = 0
        self.links = [self._link(target, f"gateway-{number}") for number in range(GATEWAYS)]

    def _link(self, target: str, name: str) -> SchedulerLink:
        return SchedulerLink(
            name=name, targets=(target,), tls=None, sink=f"unix:/nowhere/{name}", hold_s=30.0, open_=OpenRequests(),
            catalog=Catalog(on_change=lambda models: None), tenants=Tenants(TenantsFile(None), by_scheduler=False),
            metrics=self.metrics,
        )  # fmt: skip

    def begin(self, load: list[Arrival], start: float) -> None:
        """By gateways in turn, each at its time."""
        loop, links = asyncio.get_running_loop(), cycle(self.links)
        for each in load:
            loop.call_at(start + each.at, self._submit, each, next(links))  # the loop's clock is the monotonic one

    def _submit(self, arrival: Arrival, link: SchedulerLink) -> None:
        self.submitted[arrival.request] = now = time.monotonic()
        spec = ModelSpec(name=arrival.model, ttft_s=10.0, tbt_s=0.1)
        request = Request(
            arrival.request, spec, _VOCABULARY, Options(n=1, stream=True), Sampling(), [_prompt(arrival.prompt)],
            [Limits(max_tokens=_MAX_TOKENS)], [""], now,
        )  # fmt: skip
        made: list[Generation] = []
        changed = partial(self._changed, made, link)
        made.append(Submission(request, 0, self.metrics.of(arrival.model), lambda: None, changed))
        link.open(made[0])

    def _changed(self, made: list[Generation], link: SchedulerLink) -> None:
        (generation,) = made
        waited_s = time.monotonic() - self.submitted[generation.id]
        if isinstance(generation.error, UnavailableError):
            self.refused[generation.id] = waited_s, generation.error.retry_after_s
        elif generation.accepted:
            self.waits.setdefault(generation.id, waited_s)
        if generation.error is not None or not generation.open_choices:
            self.lost += generation.choices[0].epoch > 1
            link.close(generation)


async def submit(target: str, engines: int) -> None:
    """Run all gateways; print what became of the requests."""
    gateways, load = Gateways(target), requests(engines)
    tasks = [asyncio.create_task(run) for link in gateways.links for run in (link.run(), link.sweep())]
    while not all(link.connected for link in gateways.links):  # noqa: ASYNC110  # a link has no event for that
        await asyncio.sleep(0.05)
    print("attached", flush=True)
    start = float(await asyncio.to_thread(sys.stdin.readline))
    gateways.begin(load, start)
    gc.collect()
    gc.disable()  # it would look at the requests of eight gateways at once, as none does that is a process of its own
    cpu_s = time.process_time()
    await asyncio.sleep(start + HIGH_S + LOW_S - time.monotonic())
    share = (time.process_time() - cpu_s) / (HIGH_S + LOW_S)
    late_s = max(gateways.submitted[each.request] - start - each.at for each in load)
    outcomes = {"waits": gateways.waits, "refused": gateways.refused, "lost": gateways.lost}
    print(json.dumps(outcomes | {"late_s": late_s, "share": share}), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- the figures ----------------------------------------------------------------------------------------------------


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


def outcome(
    engines: int, events: float, process: float, of_engines: dict[str, Any], of_gateways: dict[str, Any]
) -> Outcome:
    """Of what the three processes say."""
    waits, refused = of_gateways["waits"], of_gateways["refused"]
    load = requests(engines)
    before = [each for each in load if each.at < HIGH_S]
    accepted = [each.request for each in before if each.request in waits and each.request not in refused]
    due = [of_engines["tokens"][request] for request in accepted]
    in_time, all_due = (sum(each[which] for each in due) for which in (0, 1))
    after = [each for each in load if HIGH_S <= each.at < HIGH_S + LOW_S - WAIT_S]  # the last ones wait at the end
    late = [each.at for each in after if waits.get(each.request, SOON_S + 1.0) > SOON_S]
    answered_s = [waits[request] for request in accepted] or [0.0]
    return Outcome(
        events=events, process=process, arrived=len(before) / HIGH_S, accepted=len(accepted) / HIGH_S,
        unanswered=sum(each.request not in waits and each.request not in refused for each in before),
        lost=of_gateways["lost"], on_time=in_time / max(1, all_due), tokens=in_time / HIGH_S,
        longest_s=max(answered_s), p99_s=quantile(answered_s, 0.99),
        longest_refusal_s=max((waited_s for waited_s, _ in refused.values()), default=0.0),
        recovered_s=max(late, default=HIGH_S) - HIGH_S,
        engines=of_engines["share"], gateways=of_gateways["share"], late_s=of_gateways["late_s"],
    )  # fmt: skip


async def _started(mode: str, target: str, engines: int) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    arguments = ("-m", "benchmarks.overload", mode, target, str(engines))
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdin=pipe, stdout=pipe, limit=1 << 26)
    assert process.stdout is not None
    await process.stdout.readline()
    return process


async def measure(engines: int) -> Outcome:
    """A fresh scheduler, the load, and what it says of itself in the second half of the time of high load."""
    async with scheduler(engines * MODELS_EACH) as serving:
        loads = [await _started(mode, serving.target, engines) for mode in ("engines", "gateways")]
        try:
            start = time.monotonic() + 1.0
            for load in loads:
                assert load.stdin is not None
                load.stdin.write(f"{start}\n".encode())
                await load.stdin.drain()
            await asyncio.sleep(1.0 + HIGH_S / 2)
            (_, events), cpu_s, began = serving.core_s(), serving.cpu_s(), time.perf_counter()
            await asyncio.sleep(HIGH_S / 2 - 1.0)
            events, took_s = serving.core_s()[1] - events, time.perf_counter() - began
            process = (serving.cpu_s() - cpu_s) / took_s
            reports = [json.loads(await load.stdout.readline()) for load in loads if load.stdout is not None]
        finally:
            for load in loads:
                if load.returncode is None:
                    load.terminate()
                await load.wait()
    return outcome(engines, events / took_s, process, *reports)


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
    modes = {"engines": serve, "gateways": submit}
    if sys.argv[1:2] and sys.argv[1] in modes:
        asyncio.run(modes[sys.argv[1]](sys.argv[2], int(sys.argv[3])))
        return 0
    half = int(sys.argv[1]) if sys.argv[1:] else HALF
    return 0 if report("overload", list(rows(half)), short=half < HALF) else 1


if __name__ == "__main__":
    sys.exit(main())
