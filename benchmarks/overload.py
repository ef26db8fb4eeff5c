"""One scheduler process with more engines than it can serve: what is accepted is served, and when the load falls all is
as before.

The load is that of benchmarks/wire.py: N engines and four models for each, 0.5 requests a second and model, and after
half a minute a tenth of that. Engines are one process and gateways another one, as a gateway whose loop is taken up by
engines would itself hold its requests up. Run with the number of engines where, without admission by lag, acceptance
first took more than a second, and with twice as many: python -m benchmarks.overload [ENGINES], the smaller number.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any, NamedTuple

from benchmarks.core import Size, arrivals, pool
from benchmarks.report import Row, report
from benchmarks.wire import scheduler
from benchmarks.wire_pool import GATEWAYS, NODE_ENGINES, Fleet

from aegaeon_proto.channels import plain_channel
from aegaeon_proto.v1 import gateway_pb2, gateway_pb2_grpc, model_pb2
from aegaeon_scheduler.core.domain import ModelName, Role, SeqId
from aegaeon_scheduler.service.outbox import Outbox
from aegaeon_simulator.pool.client import Client

MODELS_EACH, RATE, LOW = 4, 0.5, 0.1
HIGH_S, LOW_S = 30.0, 15.0
SOON_S = 0.1  # within it requests are accepted where all is well
HALF = 96
WAIT_S, ON_TIME, RECOVERY_S = 1.0, 0.95, 2.0
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 << 20))


class Asked(NamedTuple):
    """A request: its name, what it is, when it comes (seconds)."""

    request: str
    model: ModelName
    prompt: int
    length: int
    at: float


def requests(engines: int) -> list[Asked]:
    """In order; the same in every process."""
    high, low = (Size(engines * MODELS_EACH, rate, seconds, NODE_ENGINES) for rate, seconds in _PHASES)
    models, _ = pool(high, [])
    found = [(one, 0.0) for one in arrivals(high, models)] + [(one, HIGH_S) for one in arrivals(low, models)]
    ordered = sorted(((*what, after + at) for (*what, at), after in found), key=lambda one: one[3])
    return [Asked(f"r{number}", *one) for number, one in enumerate(ordered)]


_PHASES = ((RATE, HIGH_S), (RATE * LOW, LOW_S))


class Engines(Fleet):
    """Modelled ones, which know every request before it comes."""

    def __init__(self, engines: int) -> None:
        size = Size(engines * MODELS_EACH, RATE, HIGH_S, NODE_ENGINES)
        super().__init__(*pool(size, [Role.UNIFIED] * engines))

    def begin(self, asked: list[Asked], start: float) -> None:
        """`start`: on this machine's monotonic clock."""
        for one in asked:
            seq, arrival = SeqId(one.request, 0), start - self._began + one.at
            self.clients[seq] = Client(seq, one.model, one.prompt, one.length, 1 << 20, arrival)

    def due(self, client: Client, until_s: float) -> tuple[int, int]:
        """Of its tokens that are due so long after its arrival: how many came in time, and all."""
        slo = self.models[client.model][1]
        due = min(client.length, 1 + int((until_s - slo.ttft_s) / slo.tbt_s)) if until_s > slo.ttft_s else 0
        return sum(at <= slo.ttft_s + k * slo.tbt_s for k, at in enumerate(client.times[:due])), due


async def serve(target: str, engines: int) -> None:
    """Attach all, compute, and print of each request the tokens that were in time and due when the load fell."""
    asked, fleet, tasks = requests(engines), Engines(engines), []
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
    fleet.begin(asked, start)
    gc.collect()
    gc.freeze()
    cpu_s = time.process_time()
    while time.monotonic() < start + HIGH_S + LOW_S:
        fleet.advance()
        for broken in (task for task in tasks if task.done()):
            await broken
        await asyncio.sleep(0.002)
    share = (time.process_time() - cpu_s) / (HIGH_S + LOW_S)
    found = {one.request: fleet.due(fleet.clients[SeqId(one.request, 0)], HIGH_S - one.at) for one in asked}
    print(json.dumps({"share": share, "tokens": found}), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class Gateways:
    """They submit, and note what becomes of each request: seconds until it was accepted, or that it was refused."""

    def __init__(self) -> None:
        self.submitted: dict[str, float] = {}
        self.waits: dict[str, float] = {}
        self.retry_s: dict[str, float] = {}
        self._boxes = [Outbox[gateway_pb2.GatewayMessage](1 << 16) for _ in range(GATEWAYS)]

    def submit(self, asked: list[Asked], start: float) -> None:
        """By gateways in turn, each at its time."""
        loop, boxes = asyncio.get_running_loop(), cycle(self._boxes)
        for one in asked:
            loop.call_at(start + one.at, self._submit, one, next(boxes))  # the loop's clock is the monotonic one

    def _submit(self, one: Asked, box: Outbox[gateway_pb2.GatewayMessage]) -> None:
        self.submitted[one.request] = time.monotonic()
        submit = gateway_pb2.Submit(
            request=one.request,
            model=one.model,
            prompt=range(one.prompt),
            choices=[gateway_pb2.Choice(choice=0, epoch=1)],
            limits=model_pb2.Limits(max_tokens=1 << 20),
        )
        box.put(gateway_pb2.GatewayMessage(submit=submit))

    async def run(self, target: str, number: int) -> None:
        """One of them, until it is cancelled."""
        name, box = f"gateway-{number}", self._boxes[number]
        hello = gateway_pb2.GatewayHello(gateway=name, sink=f"unix:/nowhere/{name}", batches=True)
        box.put(gateway_pb2.GatewayMessage(hello=hello))
        async with plain_channel(target, options=_OPTIONS) as channel:
            async for reply in gateway_pb2_grpc.FrontendStub(channel).Serve(_messages(box)):
                for one in reply.more or (reply,):
                    self._take(one)

    def _take(self, reply: gateway_pb2.GatewayReply) -> None:
        kind = reply.WhichOneof("body")
        if kind == "accepted":
            request = reply.accepted.request
            self.waits.setdefault(request, time.monotonic() - self.submitted[request])
        elif kind == "rejected":
            self.retry_s[reply.rejected.request] = reply.rejected.retry_after_s


async def _messages(box: Outbox[gateway_pb2.GatewayMessage]) -> AsyncIterator[gateway_pb2.GatewayMessage]:
    async for message in box:
        yield message


async def submit(target: str, engines: int) -> None:
    """Run all gateways; print what became of the requests."""
    gateways, asked = Gateways(), requests(engines)
    tasks = [asyncio.create_task(gateways.run(target, number)) for number in range(GATEWAYS)]
    print("attached", flush=True)
    start = float(await asyncio.to_thread(sys.stdin.readline))
    gateways.submit(asked, start)
    await asyncio.sleep(start + HIGH_S + LOW_S - time.monotonic())
    late_s = max(gateways.submitted[one.request] - start - one.at for one in asked)
    print(json.dumps({"waits": gateways.waits, "retry_s": gateways.retry_s, "late_s": late_s}), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True)
class Outcome:
    """Of a run: requests and tokens a second before the load falls, the rest in seconds and shares."""

    events: float
    process: float
    asked: float
    accepted: float
    on_time: float
    tokens: float
    longest_s: float
    recovered_s: float
    engines: float
    late_s: float


def outcome(
    engines: int, events: float, process: float, of_engines: dict[str, Any], of_gateways: dict[str, Any]
) -> Outcome:
    """Of what the three processes say."""
    waits, refused = of_gateways["waits"], of_gateways["retry_s"]
    before = [one for one in requests(engines) if one.at < HIGH_S]
    after = [one for one in requests(engines) if one.at >= HIGH_S]
    taken = [one.request for one in before if one.request in waits and one.request not in refused]
    due = [of_engines["tokens"][request] for request in taken]
    in_time, all_due = (sum(one[which] for one in due) for which in (0, 1))
    slow = [one.at - HIGH_S for one in after if waits.get(one.request, SOON_S + 1.0) > SOON_S]
    return Outcome(
        events, process, len(before) / HIGH_S, len(taken) / HIGH_S, in_time / max(1, all_due), in_time / HIGH_S,
        max((waits[request] for request in taken), default=0.0), max(slow, default=0.0),
        of_engines["share"], of_gateways["late_s"],
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
            said = [json.loads(await load.stdout.readline()) for load in loads if load.stdout is not None]
        finally:
            for load in loads:
                if load.returncode is None:
                    load.terminate()
                await load.wait()
    return outcome(engines, events / took_s, process, *said)


def rows(engines: int) -> Iterator[Row]:
    """Both runs, and how the second compares with the first."""
    half, full = (asyncio.run(measure(count)) for count in (engines, 2 * engines))
    for count, one in ((engines, half), (2 * engines, full)):
        name = f"{count} engines"
        yield Row(f"{name}: events", one.events, "events/s")
        yield Row(f"{name}: scheduler process", one.process, "of a core")
        yield Row(f"{name}: an event", one.process / max(1.0, one.events) * 1e6, "CPU us")
        yield Row(f"{name}: requests, asked", one.asked, "requests/s")
        yield Row(f"{name}: requests, accepted", one.accepted, "requests/s")
        yield Row(f"{name}: tokens on time, of those due of what is accepted", one.on_time * 100, "%")
        yield Row(f"{name}: tokens on time", one.tokens, "tokens/s")
        yield Row(f"{name}: longest wait of what is accepted", one.longest_s, "s", WAIT_S, "<=")
        yield Row(f"{name}: load falls to a tenth, accepted within 0.1 s again", one.recovered_s, "s", RECOVERY_S, "<=")
        yield Row(f"{name}: the engines' process", one.engines, "of a core")
        yield Row(f"{name}: submitted late, at most", one.late_s, "s")
    yield Row(
        "tokens on time of what is accepted, beside half the load", full.on_time, "share", half.on_time, ">=", ON_TIME
    )


def main() -> int:
    """See the module."""
    modes = {"engines": serve, "gateways": submit}
    if sys.argv[1:2] and sys.argv[1] in modes:
        asyncio.run(modes[sys.argv[1]](sys.argv[2], int(sys.argv[3])))
        return 0
    return 0 if report("overload", list(rows(int(sys.argv[1]) if sys.argv[1:] else HALF))) else 1


if __name__ == "__main__":
    sys.exit(main())
