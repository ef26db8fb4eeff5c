"""Speaks for the sidecars of a pool to one scheduler process, over gRPC and in real time.

Each is a modelled engine (aegaeon_simulator) with a stream of its own. Run by benchmarks/wire_load.py:
python -m benchmarks.wire_engines TARGET LOAD.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Callable
from math import inf

from benchmarks.wire_codec import command_from, hello_to, report_to
from benchmarks.wire_load import Arrival, Load, OfEngines

from aegaeon_proto.channels import plain_channel
from aegaeon_proto.v1 import engine_pb2, engine_pb2_grpc
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import Finish, InstanceId, Memory, SeqId
from aegaeon_scheduler.service.outbox import Outbox
from aegaeon_simulator.clock import Clock
from aegaeon_simulator.engine.engine import Engine
from aegaeon_simulator.engine.spec import EngineSpec, Prompt
from aegaeon_simulator.engine.state import EngineState
from aegaeon_simulator.pool.client import Client

_HEARTBEAT_S = 0.5
_PERIOD_S = 0.002  # engines are looked at so often: what a step report waits at most
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 << 20))
_BOX = 1 << 16
_BATCH = 64
_MAX_TOKENS = 1 << 20


class Sidecar:
    """A modelled engine behind a stream."""

    def __init__(self, spec: EngineSpec, fleet: Fleet) -> None:
        self._fleet = fleet
        self._box: Outbox[engine_pb2.Report] = Outbox(_BOX)
        served = {name: one for name, (one, _) in fleet.models.items()}
        self.engine = Engine(spec, served, fleet.clock, self._say, fleet.prompt, fleet.state, fleet.token)
        self.attached = asyncio.Event()
        self._reported: tuple[float, Memory] | None = None  # when a report last named what is free

    async def run(self, target: str) -> None:
        """Say hello, then obey."""
        up, *models = self.engine.hello()
        assert isinstance(up, ev.InstanceUp)
        states = [state for state in models if isinstance(state, ev.ModelReported)]
        self._box.put(hello_to(up, states, time.time()))
        async with plain_channel(target, options=_OPTIONS) as channel:
            async for message in engine_pb2_grpc.EngineStub(channel).Attach(self._reports()):
                self.attached.set()
                self._fleet.advance()
                for command in message.commands:
                    send = command_from(up.instance, command)
                    if send is not None:
                        self.engine.send(send)

    async def _reports(self) -> AsyncIterator[engine_pb2.Reports]:
        async for batch in self._box.batches(_BATCH):
            yield engine_pb2.Reports(reports=batch)

    def _say(self, event: ev.Event) -> None:
        memory: Memory | None = getattr(event, "memory", None)
        if memory is not None:
            self._reported = self._fleet.clock.now, memory
        self._box.put(report_to(event))

    def heartbeat(self) -> None:
        """Every half a second, unless it repeats a report, as a sidecar's."""
        at, memory = self._reported or (-inf, None)
        if self._fleet.clock.now - at >= _HEARTBEAT_S / 2 or self.engine.state.memory() != memory:
            self.engine.heartbeat()
        self._fleet.clock.at(self._fleet.clock.now + _HEARTBEAT_S, self.heartbeat)


class Fleet:
    """All of them on one clock, which follows the machine's. They know every request before it comes."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.models, specs = load.pool()
        self.clock = Clock()
        self._clients: dict[SeqId, Client] = {}
        self._began = time.monotonic()
        self.sidecars = {spec.instance: Sidecar(spec, self) for spec in specs}

    def begin(self, requests: list[Arrival], start: float) -> None:
        """`start`: on this machine's monotonic clock."""
        for request, model, prompt, length, at in requests:
            seq = SeqId(request, 0)
            self._clients[seq] = Client(seq, model, prompt, length, _MAX_TOKENS, start - self._began + at)

    def advance(self) -> None:
        """Do what is due by now."""
        now = time.monotonic() - self._began
        while (at := self.clock.next_at()) is not None and at <= now:
            self.clock.step()
        self.clock.now = now

    def prompt(self, seq: SeqId, epoch: int) -> Prompt | None:
        client = self._clients[seq]
        return Prompt(client.prompt_tokens, len(client.times), client.length) if epoch == client.epoch else None

    def state(self, instance: InstanceId) -> EngineState | None:
        return self.sidecars[instance].engine.state

    def token(self, seq: SeqId, epoch: int, index: int, times: list[float], finish: Finish | None) -> None:
        client = self._clients[seq]
        if epoch == client.epoch:
            client.times.extend(t - client.arrival for t in times[len(client.times) - index :])
            client.finished = client.finished or finish is not None

    def tokens(self, requests: list[Arrival]) -> dict[str, tuple[int, int]]:
        """See OfEngines."""
        return {each.request: self._due(each) for each in requests}

    def _due(self, arrival: Arrival) -> tuple[int, int]:
        client, slo = self._clients[SeqId(arrival.request, 0)], self.models[arrival.model][1]
        counted_s = self._load.counted_s - arrival.at - slo.ttft_s
        due = min(arrival.length, 1 + int(counted_s / slo.tbt_s)) if counted_s > 0 else 0
        return sum(at <= slo.ttft_s + k * slo.tbt_s for k, at in enumerate(client.times[:due])), due


async def _attach(fleet: Fleet, target: str) -> list[asyncio.Task[None]]:
    tasks = []
    for sidecar in fleet.sidecars.values():
        tasks.append(asyncio.create_task(sidecar.run(target)))
        await sidecar.attached.wait()
        fleet.advance()
        sidecar.heartbeat()
    return tasks


async def _advance(fleet: Fleet, tasks: list[asyncio.Task[None]], until: Callable[[], bool]) -> None:
    while not until():
        fleet.advance()
        for broken in (task for task in tasks if task.done()):
            await broken
            raise RuntimeError("the scheduler ended a stream")
        await asyncio.sleep(_PERIOD_S)


async def serve(target: str, load: Load) -> None:
    """Attach all, compute from the time that is read, and print OfEngines."""
    fleet = Fleet(load)
    tasks, requests = await _attach(fleet, target), load.requests()
    gc.collect()
    gc.freeze()
    print("attached", flush=True)
    reading = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    await _advance(fleet, tasks, reading.done)  # heartbeats
    start = float(await reading)
    fleet.begin(requests, start)
    cpu_s, end = time.process_time(), start + load.seconds
    await _advance(fleet, tasks, lambda: time.monotonic() >= end)
    share = (time.process_time() - cpu_s) / load.seconds
    print(json.dumps(OfEngines(share=share, tokens=fleet.tokens(requests))), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], Load.from_argument(sys.argv[2])))
