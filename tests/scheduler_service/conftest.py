"""A scheduler that serves on a unix socket in this process, and real gRPC clients that play sidecars and gateways.

The brain is the real one or a scripted one: it records its events and answers by kind of event.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from aegaeon_proto.channels import plain_channel
from aegaeon_proto.v1 import admin_pb2_grpc, engine_pb2, engine_pb2_grpc, gateway_pb2, gateway_pb2_grpc, model_pb2
from aegaeon_scheduler.config import SchedulerConfig
from aegaeon_scheduler.core import commands, events
from aegaeon_scheduler.core.domain import InstanceId, Role, SeqId
from aegaeon_scheduler.core.snapshot import Snapshot
from aegaeon_scheduler.service.server import Service

MODELS = [
    {"name": "tiny-a", "source": {"directory": "/models/a"}, "ttft_s": 2, "tbt_s": 0.1},
    {"name": "tiny-b", "source": {"hub": {"repository": "org/b", "revision": "main"}}, "ttft_s": 2, "tbt_s": 0.1},
]
PATIENCE_S = 60  # against what hangs; on a machine that is busy with much else, all takes long


class ScriptedBrain:
    """Records its events; answers with the commands that `script` has for the kind of event."""

    def __init__(self) -> None:
        self.received: list[events.Event] = []
        self.times: list[float] = []
        self.full = 0.0
        self.queued: dict[SeqId, int] = {}
        self.script: dict[type, Callable[[Any], list[commands.Command]]] = {}
        self._news = asyncio.Condition()
        self._tellers: set[asyncio.Task[None]] = set()

    def on(self, now: float, event: events.Event) -> list[commands.Command]:
        self.received.append(event)
        self.times.append(now)
        teller = asyncio.get_running_loop().create_task(self._tell())
        self._tellers.add(teller)
        teller.add_done_callback(self._tellers.discard)
        return self.script.get(type(event), lambda _: [])(event)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()

    async def wait_for(self, kind: type, number: int = 1) -> Any:
        """The `number`-th event of this kind, as soon as it has come."""
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(lambda: len(self.all_of(kind)) >= number)
        return self.all_of(kind)[number - 1]

    def snapshot(self, now: float) -> Snapshot:
        return Snapshot(now, "scripted", (), (), (), ())

    def kv_used(self) -> float:
        return self.full

    def places(self, before: float) -> dict[SeqId, int]:
        return self.queued

    def apart(self, name: str) -> None:
        return None

    def roles(self, name: str) -> frozenset[Role]:
        return frozenset()

    def role_of(self, instance: InstanceId) -> Role | None:
        return None

    places_version = 0

    def all_of(self, kind: type) -> list[Any]:
        return [event for event in self.received if isinstance(event, kind)]


class Sidecar:
    """A client of Engine.Attach."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = engine_pb2_grpc.EngineStub(channel).Attach()
        self._commands: deque[engine_pb2.Command] = deque()  # of the message that was read

    async def report(self, **body: Any) -> None:
        await self.write(engine_pb2.Report(**body))

    async def write(self, *reports: engine_pb2.Report) -> None:
        """In one message."""
        await self.call.write(engine_pb2.Reports(reports=reports))

    async def next(self) -> engine_pb2.Command:
        if not self._commands:
            self._commands.extend(await self.message())
        return self._commands.popleft()

    async def message(self) -> list[engine_pb2.Command]:
        """All commands of the next message."""
        async with asyncio.timeout(PATIENCE_S):
            message = await self.call.read()
        assert isinstance(message, engine_pb2.Commands), f"the stream ended: {await self.call.code()}"
        return list(message.commands)

    async def ended(self) -> tuple[grpc.StatusCode, str]:
        """How the scheduler ended the stream; what still comes before is skipped."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.call.code(), await self.call.details()


def submission(request: str = "r1", epoch: int = 1, count: int = 1, **fields: Any) -> gateway_pb2.Submit:
    """A submission with sensible contents."""
    defaults = {
        "model": "tiny-a",
        "prompt": [11, 12, 13],
        "choices": [gateway_pb2.Choice(choice=n, epoch=epoch) for n in range(count)],
        "sampling": model_pb2.Sampling(temperature=0.5, seed=7),
        "limits": model_pb2.Limits(max_tokens=5, stop_ids=[2]),
    }
    return gateway_pb2.Submit(request=request, **(defaults | fields))


class Gateway:
    """A client of Frontend.Serve."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.call = gateway_pb2_grpc.FrontendStub(channel).Serve()

    async def send(self, **body: Any) -> None:
        await self.call.write(gateway_pb2.GatewayMessage(**body))

    async def submit(self, *arguments: Any, **fields: Any) -> gateway_pb2.Submit:
        """Send a submission, and return it."""
        submit = submission(*arguments, **fields)
        await self.send(submit=submit)
        return submit

    async def next(self, kind: str) -> Any:
        """The next reply of this kind; others are skipped."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                reply = await self.call.read()
                assert isinstance(reply, gateway_pb2.GatewayReply), f"the stream ended: {await self.call.code()}"
                if reply.WhichOneof("body") == kind:
                    return getattr(reply, kind)

    async def ended(self) -> tuple[grpc.StatusCode, str]:
        async with asyncio.timeout(PATIENCE_S):
            return await self.call.code(), await self.call.details()


class Stack:
    """A service and its clients."""

    def __init__(self, service: Service | None, brain: Any, target: str, exits: AsyncExitStack) -> None:
        self.service = service
        self.brain = brain
        self.target = target
        self._exits = exits

    async def channel(self) -> grpc.aio.Channel:
        return await self._exits.enter_async_context(
            plain_channel(self.target, options=(("grpc.use_local_subchannel_pool", 1),))
        )

    async def admin(self) -> admin_pb2_grpc.AdminAsyncStub:
        """A client of the admin socket, which lies beside the other."""
        options = (("grpc.use_local_subchannel_pool", 1),)
        target = self.target.removesuffix("s.sock") + "admin.sock"
        return admin_pb2_grpc.AdminStub(await self._exits.enter_async_context(plain_channel(target, options=options)))

    async def attach(self) -> Sidecar:
        return Sidecar(await self.channel())

    async def sidecar(self, instance: str = "decode-0", incarnation: str = "one", **hello: Any) -> Sidecar:
        """An attached sidecar that has its catalog."""
        sidecar = await self.attach()
        defaults = {"role": engine_pb2.ROLE_UNIFIED, "slabs": 64, "host_slabs": 64, "slab_bytes": 1 << 20}
        memory = engine_pb2.Memory(slabs_free=64, host_slabs_free=64)
        fields = {"max_batch": 8, "memory": memory, "device": "cpu", "node": "n"} | defaults | hello
        await sidecar.report(hello=engine_pb2.Hello(instance=instance, incarnation=incarnation, **fields))
        assert (await sidecar.next()).WhichOneof("body") == "catalog"
        return sidecar

    async def gateway(self, name: str = "gw", sink: str = "unix:/run/gw.sock") -> Gateway:
        """A connected gateway that has its first catalog."""
        gateway = Gateway(await self.channel())
        await gateway.send(hello=gateway_pb2.GatewayHello(gateway=name, sink=sink))
        await gateway.next("catalog")
        return gateway

    async def status(self, interval_s: float = 0) -> AsyncIterator[gateway_pb2.PoolStatus]:
        stub = gateway_pb2_grpc.FrontendStub(await self.channel())
        async for status in stub.Status(gateway_pb2.StatusRequest(interval_s=interval_s)):
            yield status


@pytest.fixture
def brain() -> ScriptedBrain:
    """A scripted brain."""
    return ScriptedBrain()


@pytest.fixture
def folder(sockets: Path) -> Path:
    """A folder with a name short enough for a socket in it."""
    return sockets


@pytest.fixture
def serve(folder: Path) -> Callable[..., Any]:
    """`async with serve(brain, **config) as stack`."""

    @asynccontextmanager
    async def serving(brain: Any, first_base: int = 1000, observers: Any = (), **changes: Any) -> AsyncIterator[Stack]:
        target = f"unix:{folder}/s.sock"
        admin = f"unix:{folder}/admin.sock"
        settings = {
            "listen": target,
            "admin_listen": admin,
            "pool": "test",
            "models": MODELS,
            "reattach_s": 0.1,
            "gateway_grace_s": 0.2,
        }
        bases = itertools.count(first_base, 1000).__next__
        service = Service(SchedulerConfig.model_validate(settings | changes), brain, time.monotonic, bases, observers)
        await service.start()
        try:
            async with AsyncExitStack() as exits:
                yield Stack(service, brain, target, exits)
        finally:
            await service.stop()

    return serving


@pytest.fixture
def anonymous() -> Callable[[Stack], Any]:
    """A gateway that has not said hello."""

    async def connect(stack: Stack) -> Gateway:
        return Gateway(await stack.channel())

    return connect


@pytest.fixture
def configured(folder: Path) -> Callable[..., Path]:
    """A configuration file of a scheduler in this folder."""

    def write(**changes: Any) -> Path:
        path = folder / "config.json"
        admin = f"unix:{folder}/admin.sock"
        settings = {"listen": f"unix:{folder}/s.sock", "admin_listen": admin, "pool": "test", "models": MODELS}
        path.write_text(json.dumps(settings | changes))
        return path

    return write


@pytest.fixture
def dial() -> Callable[[str], Any]:
    """`async with dial(target) as stack`: clients of a scheduler that runs elsewhere."""

    @asynccontextmanager
    async def dialled(target: str) -> AsyncIterator[Stack]:
        async with AsyncExitStack() as exits:
            yield Stack(None, None, target, exits)

    return dialled
