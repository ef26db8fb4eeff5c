"""Speaks for the sidecars and gateways of a pool to one scheduler process, over gRPC and in real time.

Each sidecar is a modelled engine (aegaeon_simulator) with a stream of its own. Run by benchmarks/wire.py in a process
of its own, so that its CPU time is not counted:
python -m benchmarks.wire_pool TARGET ENGINES MODELS RATE SECONDS.
It prints "attached", then "ended" and the figures of `Fleet.figures`.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from itertools import cycle
from math import inf
from typing import Any

from benchmarks.core import Size, arrivals, pool, quantile
from benchmarks.wire_codec import command_from, hello_to, report_to

from aegaeon_proto.channels import plain_channel
from aegaeon_proto.v1 import engine_pb2, engine_pb2_grpc, gateway_pb2, gateway_pb2_grpc, model_pb2
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import Finish, InstanceId, Memory, ModelName, Role, SeqId, Slo
from aegaeon_scheduler.core.slo import attainment
from aegaeon_scheduler.service.outbox import Outbox
from aegaeon_simulator.clock import Clock
from aegaeon_simulator.engine.engine import Engine
from aegaeon_simulator.engine.spec import EngineSpec, Prompt, Served
from aegaeon_simulator.engine.state import EngineState
from aegaeon_simulator.pool.client import Client

GATEWAYS = 8
NODE_ENGINES = 8
_HEARTBEAT_S = 0.5
_PERIOD_S = 0.002  # engines are looked at so often: what a step report waits at most
_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", 64 << 20))
_BOX = 1 << 16
_BATCH = 64

Models = dict[ModelName, tuple[Served, Slo]]


async def _messages(box: Outbox[Any]) -> AsyncIterator[Any]:
    async for message in box:
        yield message


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


class Gateway:
    """A stream that submits requests."""

    def __init__(self, name: str, fleet: Fleet) -> None:
        self._name = name
        self._fleet = fleet
        self._box: Outbox[gateway_pb2.GatewayMessage] = Outbox(_BOX)

    async def run(self, target: str) -> None:
        """Until the scheduler ends the stream."""
        hello = gateway_pb2.GatewayHello(gateway=self._name, sink=f"unix:/nowhere/{self._name}")
        self._box.put(gateway_pb2.GatewayMessage(hello=hello))
        async with plain_channel(target, options=_OPTIONS) as channel:
            async for reply in gateway_pb2_grpc.FrontendStub(channel).Serve(_messages(self._box)):
                kind = reply.WhichOneof("body")
                if kind == "accepted":
                    self._fleet.accepted(reply.accepted.request)
                elif kind == "rejected":
                    self._fleet.refused.add(SeqId(reply.rejected.request, 0))
                elif kind == "lost":
                    client = self._fleet.clients[SeqId(reply.lost.seq.request, reply.lost.seq.choice)]
                    client.epoch += 1
                    self.submit(client)

    def submit(self, client: Client) -> None:
        """A request, or what is left of it."""
        submit = gateway_pb2.Submit(
            request=client.seq.request,
            model=client.model,
            prompt=range(client.prompt_tokens),
            choices=[gateway_pb2.Choice(choice=0, epoch=client.epoch, prefix=range(len(client.times)))],
            limits=model_pb2.Limits(max_tokens=client.max_tokens),
            age_s=self._fleet.clock.now - client.arrival,
        )
        self._box.put(gateway_pb2.GatewayMessage(submit=submit))
        self._fleet.submitted(client)


class Fleet:
    """All of them on one clock, which follows the machine's."""

    def __init__(self, models: Models, specs: list[EngineSpec]) -> None:
        self.models = models
        self.clock = Clock()
        self.clients: dict[SeqId, Client] = {}
        self.waits_s: list[float] = []  # of requests, from their submission until they were accepted
        self.late_s: list[float] = []  # of submissions, which are due at their arrival: this process was busy
        self.refused = set[SeqId]()
        self._submitted: dict[SeqId, float] = {}
        self._loaded = self._cpu_s = 0.0
        self._began = time.monotonic()
        self.sidecars = {spec.instance: Sidecar(spec, self) for spec in specs}
        self.gateways = [Gateway(f"gateway-{i}", self) for i in range(GATEWAYS)]

    def advance(self) -> None:
        """Do what is due by now."""
        now = time.monotonic() - self._began
        while (at := self.clock.next_at()) is not None and at <= now:
            self.clock.step()
        self.clock.now = now

    def prompt(self, seq: SeqId, epoch: int) -> Prompt | None:
        client = self.clients[seq]
        return Prompt(client.prompt_tokens, len(client.times), client.length) if epoch == client.epoch else None

    def state(self, instance: InstanceId) -> EngineState | None:
        return self.sidecars[instance].engine.state

    def token(self, seq: SeqId, epoch: int, index: int, times: list[float], finish: Finish | None) -> None:
        client = self.clients[seq]
        if epoch == client.epoch:
            client.times.extend(t - client.arrival for t in times[len(client.times) - index :])
            client.finished = client.finished or finish is not None

    def submitted(self, client: Client) -> None:
        now = time.monotonic() - self._began
        if self._submitted.setdefault(client.seq, now) == now:
            self.late_s.append(now - client.arrival)

    def accepted(self, request: str) -> None:
        client = self.clients[SeqId(request, 0)]
        if not client.accepted:
            self.waits_s.append(time.monotonic() - self._began - self._submitted[client.seq])
        client.accepted += 1

    def schedule(self, size: Size) -> None:
        """All requests, by gateways in turn, from now on."""
        start, gateways = self.clock.now, cycle(self.gateways)
        self._loaded, self._cpu_s = start, time.process_time()
        for i, (name, prompt, length, at) in enumerate(sorted(arrivals(size, self.models), key=lambda a: a[3])):
            client = Client(SeqId(f"r{i}", 0), name, prompt, length, 1 << 20, start + at)
            self.clients[client.seq] = client
            self.clock.at(client.arrival, partial(next(gateways).submit, client))

    def figures(self) -> str:
        """Share of tokens on time of what was not refused, how many requests were, the longest wait until one was
        accepted, how late they were submitted (p99 and the latest, seconds), and the share of a core that all took."""
        taken = [client for seq, client in self.clients.items() if seq not in self.refused]
        on_time = attainment((c.times, self.models[c.model][1], c.length) for c in taken)
        late_s = (quantile(self.late_s, 0.99), max(self.late_s))
        share = (time.process_time() - self._cpu_s) / (time.monotonic() - self._began - self._loaded)
        accepted_s = max(self.waits_s, default=0.0)
        return " ".join(f"{one:.4f}" for one in (on_time.token, len(self.refused), accepted_s, *late_s, share))


async def serve(target: str, size: Size, engines: int) -> str:
    """Attach all, wait for "go", run the load; figures in words."""
    models, specs = pool(size, [Role.UNIFIED] * engines)
    fleet = Fleet(models, specs)
    tasks = []
    for sidecar in fleet.sidecars.values():
        tasks.append(asyncio.create_task(sidecar.run(target)))
        await sidecar.attached.wait()
        fleet.advance()
        sidecar.heartbeat()
    tasks += [asyncio.create_task(gateway.run(target)) for gateway in fleet.gateways]
    gc.collect()
    gc.freeze()
    await asyncio.sleep(1.0)
    print("attached", flush=True)
    fleet.advance()
    fleet.schedule(size)
    until = fleet.clock.now + size.seconds
    while fleet.clock.now < until:
        fleet.advance()
        broken = [task for task in tasks if task.done()]
        if broken:
            await broken[0]
            raise RuntimeError("the scheduler ended a stream")
        await asyncio.sleep(_PERIOD_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return f"ended {fleet.figures()}"


def main() -> int:
    """See the module."""
    target, engines, models, rate, seconds = sys.argv[1:]
    size = Size(int(models), float(rate), float(seconds), NODE_ENGINES)
    print(asyncio.run(serve(target, size, int(engines))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
