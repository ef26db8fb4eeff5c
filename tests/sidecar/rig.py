"""A scripted scheduler and gateway over real gRPC, and sidecars in this process or as processes of their own.

The script sends commands and awaits what became of each; tokens are collected as a gateway does, each index once.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from aegaeon_proto.frame_server import Connection, FrameServer
from aegaeon_proto.roles import Role
from aegaeon_proto.servers import make_server
from aegaeon_proto.v1 import engine_pb2 as pb
from aegaeon_proto.v1 import engine_pb2_grpc, gateway_pb2
from aegaeon_proto.v1 import model_pb2 as mpb
from aegaeon_sidecar.backends import Backend, Launched, StepInput
from aegaeon_sidecar.backends.torch import TorchBackend
from aegaeon_sidecar.config import SidecarConfig
from aegaeon_sidecar.engine.engine import Engine
from aegaeon_sidecar.engine.outbox import Outbox
from aegaeon_sidecar.rpc.server import Attachment
from aegaeon_sidecar.rpc.sink import Sinks

PATIENCE_S = 60.0  # against what hangs; on a machine that is busy with much else, all takes long
START_S = 150.0  # of a process that imports torch while others use the processors: 2 s alone
SLAB = 64 * 1024


def config(folder: Path, instance: str = "a", **changes: Any) -> dict[str, Any]:
    """A small sidecar's configuration as JSON would hold it."""
    memory = {"device_bytes": 64 * SLAB, "slab_bytes": SLAB, "host_kv_bytes": 64 * SLAB, "host_cache_bytes": 64 << 20}
    return {
        "instance": instance,
        "node": "n",
        "role": "unified",
        "scheduler": f"unix:{folder}/s.sock",
        "memory": memory | changes.pop("memory", {}),
        "segments": str(folder / "segments"),
        "prefill_chunk_tokens": 7,
        "max_batch": 4,
        "heartbeat_s": 0.1,
        **changes,
    }


def seq(name: str, choice: int = 0) -> mpb.SeqId:
    return mpb.SeqId(request=name, choice=choice)


def spec(
    name: str, directory: Path, max_model_len: int = 0, adapters: Mapping[str, Path] | None = None
) -> mpb.ModelSpec:
    source = mpb.ModelSource(directory=str(directory))
    some = [
        mpb.AdapterSpec(name=one, source=mpb.ModelSource(directory=str(at))) for one, at in (adapters or {}).items()
    ]
    return mpb.ModelSpec(name=name, source=source, max_model_len=max_model_len, adapters=some)


class Counted(TorchBackend):
    """`ahead`: for each step its inputs that began with tokens which the host did not know."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ahead: list[int] = []

    def launch(self, model: str, inputs: Sequence[StepInput], after: Launched | None = None) -> Launched:
        self.ahead.append(sum(part.follows is not None for part in inputs))
        return super().launch(model, inputs, after)


@dataclass
class Link:
    """One attachment as the scheduler sees it."""

    hello: pb.Hello
    commands: asyncio.Queue[pb.Command | None] = field(default_factory=asyncio.Queue)
    models: dict[str, mpb.ModelState] = field(default_factory=dict)
    steps: dict[int, list[pb.StepDone]] = field(default_factory=dict)
    outcomes: dict[int, pb.Report] = field(default_factory=dict)
    order: list[int] = field(default_factory=list)
    memory: pb.Memory = field(default_factory=pb.Memory)
    heartbeats: int = 0
    draining: bool = False
    held: list[set[str]] = field(default_factory=list)  # in host memory, at each report
    last_id: int = 0
    news: asyncio.Condition = field(default_factory=asyncio.Condition)

    def send(self, body: Any, after: Iterable[int] = ()) -> int:
        """Issue a command by the type of its body; returns its id."""
        self.last_id += 1
        command = pb.Command(id=self.last_id, after=after)
        kinds = {f.message_type.name: f.name for f in pb.Command.DESCRIPTOR.oneofs_by_name["body"].fields}
        getattr(command, kinds[body.DESCRIPTOR.name]).CopyFrom(body)
        self.commands.put_nowait(command)
        return self.last_id

    async def until(self, happened: Any) -> None:
        async with asyncio.timeout(PATIENCE_S), self.news:
            await self.news.wait_for(happened)

    async def outcome(self, command: int) -> pb.Report:
        """Done, Failed or Skipped of a command, or the last StepDone of a turn."""
        await self.until(lambda: command in self.outcomes)
        return self.outcomes[command]

    async def done(self, command: int) -> pb.Report:
        """The outcome, which must be a good one."""
        report = await self.outcome(command)
        assert report.WhichOneof("body") in ("done", "step_done"), report
        return report

    async def refused(self, command: int) -> pb.Failed:
        """The outcome, which must be a failure."""
        report = await self.outcome(command)
        assert report.WhichOneof("body") == "failed", report
        return report.failed

    async def cached(self, *models: str) -> None:
        """Until these models are in the host cache, from their announcement on; a failed one is an error."""
        unsettled = mpb.ModelState(phase=mpb.MODEL_PHASE_FETCHING)
        await self.until(lambda: all(self.models.get(m, unsettled).phase != unsettled.phase for m in models))
        assert all(self.models[m].phase == mpb.MODEL_PHASE_CACHED for m in models), self.models

    def adapters(self, model: str, phase: mpb.ModelPhase.ValueType) -> dict[str, str]:
        """The reasons of those of a model's adapters that are in this phase, by name."""
        state = self.models.get(model, mpb.ModelState())
        return {one.adapter: one.reason for one in state.adapters if one.phase == phase}

    async def hear(self, report: pb.Report) -> None:
        kind = report.WhichOneof("body")
        body = getattr(report, kind)
        if kind == "model":
            self.models[body.model] = body
        elif kind == "heartbeat":
            self.heartbeats += 1
        elif kind == "host_cache":
            self.held.append(set(body.models))
        elif kind == "step_done":
            self.steps.setdefault(body.turn, []).append(body)
        if kind in ("done", "failed", "skipped") or (kind == "step_done" and body.end):
            command = body.turn if kind == "step_done" else body.id
            assert command not in self.outcomes, f"two outcomes of command {command}"
            self.outcomes[command] = report
            self.order.append(command)
        elif kind == "draining":
            self.draining = True
        if kind not in ("skipped", "model", "host_cache", "draining"):
            self.memory = body.memory
        async with self.news:
            self.news.notify_all()


@dataclass(frozen=True, slots=True)
class Pushed:
    """What one sidecar sends to the gateway."""

    rig: Rig
    peer: Connection

    def received(self, data: bytes) -> None:
        batch = gateway_pb2.TokenBatch.FromString(data)
        self.rig.take(batch)
        if not self.rig.deaf:
            self.peer.send(gateway_pb2.TokenAck(number=batch.number))

    def ended(self) -> None:
        """Nothing is kept."""


class Rig(engine_pb2_grpc.EngineServicer):
    """The scheduler's and the gateway's side of every stream, in a folder; `models`: directories of models to serve."""

    def __init__(self, folder: Path, models: dict[str, Path] | None = None) -> None:
        self.folder = folder
        self.models = models or {}
        self.target = f"unix:{folder}/s.sock"
        self.sink = f"unix:{folder}/sink.sock"
        self.links: dict[str, Link] = {}
        self.attachments = 0
        self.announcements: list[tuple[str, str]] = []
        self.suspects: list[pb.SuspectDevice] = []
        self.refused = 0
        self.tokens: dict[tuple[str, int], dict[int, gateway_pb2.Token]] = {}
        self.received = 0
        self.deaf = False  # take tokens, acknowledge none
        self.refuses = False  # every sidecar
        self.news = asyncio.Condition()
        self._server: grpc.aio.Server | None = None
        self._notified: set[asyncio.Task[None]] = set()

    async def Attach(self, requests: AsyncIterator[pb.Reports], context: Any) -> AsyncIterator[pb.Commands]:
        (first,) = (await anext(requests)).reports
        if self.refuses:
            self.refused += 1
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "another process of that name counts")
        link = Link(first.hello, models={state.model: state for state in first.hello.models}, memory=first.hello.memory)
        self.attachments += 1
        self.links[first.hello.instance] = link
        async with self.news:
            self.news.notify_all()
        reader = asyncio.create_task(self._hear(requests, link))
        try:
            while (command := await link.commands.get()) is not None:
                yield pb.Commands(commands=[command])
        finally:
            reader.cancel()

    async def Announce(self, request: pb.Announcement, context: Any) -> pb.Announced:
        self.announcements.append((request.instance, request.doing))
        self.suspects += [request.suspect] if request.HasField("suspect") else []
        async with self.news:
            self.news.notify_all()
        return pb.Announced()

    async def _hear(self, requests: AsyncIterator[pb.Reports], link: Link) -> None:
        async for message in requests:
            for report in message.reports:
                await link.hear(report)
        link.commands.put_nowait(None)  # it ends its side, so the scheduler ends the other

    def take(self, batch: gateway_pb2.TokenBatch) -> None:
        for token in batch.tokens:
            self._take(token)
        task = asyncio.create_task(self._notify())
        self._notified.add(task)
        task.add_done_callback(self._notified.discard)

    async def _notify(self) -> None:
        async with self.news:
            self.news.notify_all()

    def _take(self, token: gateway_pb2.Token) -> None:
        self.received += 1
        mine = self.tokens.setdefault((token.seq.request, token.seq.choice), {})
        old = mine.get(token.index)
        assert old is None or old.token == token.token, f"index {token.index} came twice, and different: {old} {token}"
        if old is None or not old.finish:
            mine[token.index] = token

    def output(self, name: str, choice: int = 0) -> list[int]:
        """The tokens of a sequence in order; gaps are errors."""
        mine = self.tokens.get((name, choice), {})
        assert sorted(mine) == list(range(min(mine, default=0), len(mine) + min(mine, default=0))), sorted(mine)
        return [mine[i].token for i in sorted(mine)]

    async def until(self, happened: Any) -> None:
        async with asyncio.timeout(PATIENCE_S), self.news:
            await self.news.wait_for(happened)

    async def received_tokens(self, name: str, count: int) -> list[int]:
        """The output once it has so many tokens."""
        await self.until(lambda: len(self.tokens.get((name, 0), {})) >= count)
        return self.output(name)

    async def link(self, instance: str, attachments: int = 1) -> Link:
        """Its stream, once it has attached so many times."""
        async with asyncio.timeout(START_S), self.news:
            await self.news.wait_for(lambda: instance in self.links and self.attachments >= attachments)
        return self.links[instance]

    async def cached(self, models: Sequence[mpb.ModelSpec], instance: str = "a", attachments: int = 1) -> Link:
        """Stream of a sidecar that has these models, once all are in the host cache."""
        link = await self.link(instance, attachments)
        link.send(pb.Catalog(models=models))
        await link.cached(*(model.name for model in models))
        return link

    async def serve(self) -> None:
        self._server = make_server()
        engine_pb2_grpc.add_EngineServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.target)
        await self._server.start()
        self._gateway = FrameServer("TokenSink", Role.ENGINE, lambda peer: Pushed(self, peer), 64 << 20)
        await self._gateway.start(self.sink, None)

    async def vanish(self) -> None:
        """The scheduler and the gateway are gone, abruptly."""
        if self._server is not None:
            await self._server.stop(None)
            self._gateway.stop()
            self._server = None

    def open(self, name: str, model: str, prompt: list[int], **fields: Any) -> pb.Open:
        limits = mpb.Limits(max_tokens=fields.pop("max_tokens", 100), stop_ids=fields.pop("stop_ids", ()))
        sampling = fields.pop("sampling", mpb.Sampling(top_p=1, repetition_penalty=1))
        return pb.Open(
            seq=seq(name),
            epoch=fields.pop("epoch", 1),
            model=model,
            prompt=prompt,
            sampling=sampling,
            limits=limits,
            reply_to=fields.pop("reply_to", self.sink),
            **fields,
        )


@asynccontextmanager
async def rig(folder: Path, models: dict[str, Path] | None = None) -> AsyncIterator[Rig]:
    made = Rig(folder, models)
    await made.serve()
    try:
        yield made
    finally:
        await made.vanish()


@asynccontextmanager
async def inside(settings: dict[str, Any], backend: Backend | None = None) -> AsyncIterator[Engine]:
    """A sidecar in this process; at its end every lane must have ended and its segment be gone."""
    made = SidecarConfig.model_validate(settings)
    loop = asyncio.get_running_loop()
    outbox = Outbox(loop)
    engine: Engine

    def replies_to(target: str) -> bool:
        return engine.state.kv.sequences.replies_to(target)

    sinks = Sinks(made.instance, loop, replies_to, keep_s=0.5)
    crashes: list[str] = []
    engine = Engine(
        made,
        os.urandom(4).hex(),
        backend or TorchBackend(),
        outbox,
        sinks.push,
        lambda _: crashes.append("a lane died"),
    )
    engine.start()
    task = asyncio.create_task(Attachment(engine, outbox, made).run())
    try:
        yield engine
        engine.check()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        ended = await asyncio.to_thread(engine.stop, 5.0)
        await sinks.close()
    assert ended
    assert not crashes
    assert not list(made.segments.glob(f"{made.instance}@*"))


async def ready(scheduler: Rig, directory: Path) -> Link:
    """Sidecar `a`, once its only model `m` is on the device."""
    link = await scheduler.cached([spec("m", directory)])
    await link.done(link.send(pb.Load(model="m", slabs=32)))
    return link


def scrub(engine: Engine) -> None:
    """What unloaded models have left in free slabs is gone: the next load copies all of its bytes."""
    pool = engine.state.kv.device.pool
    pool.give(pool.take(pool.free))


@asynccontextmanager
async def outside(
    settings: dict[str, Any], folder: Path, *arguments: str, module: str = "aegaeon_sidecar"
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A sidecar as a process of its own; killed at the end if it still runs."""
    file = folder / f"{settings.get('instance', 'config')}.json"
    file.write_text(json.dumps(settings))
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(Path(__file__).parents[1]))))
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, "--config", str(file), *arguments, env=environment
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
