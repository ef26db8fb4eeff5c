"""A picker process under attack from one address, and a gRPC client beside it whose calls go on."""

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import grpc
import pytest
from e2e.envoy import free_ports
from picker.hostile import ATTACKS, PROCESS, body_request, connect

from aegaeon_proto.channels import plain_channel
from aegaeon_proto.envoy.ext_proc_pb2 import ProcessingResponse

pytestmark = pytest.mark.slow  # runs without anything beside it: how long calls of others take is compared

ATTACK_S = 1.0
AT_ONCE = 3
PATIENCE_S = 60.0
GROWTH_BYTES = 160 << 20  # 128 MiB may be buffered; no single address gets near it
SLOWER = 20.0  # times a quiet call, which leaves room for a machine that does other things
SLOWER_S = 0.25
MESSAGE = body_request(b"tokens")

# Why connections of an attack end; none: they are harmless, or wait for a time-out.
REASONS = {
    "ping flood": "pings",
    "ping flood, never read": "pings",
    "settings flood": "settings",
    "settings flood, never read": "settings",
    "unknown settings": "settings",
    "rapid reset": "resets",
    "rapid reset of unfinished streams": "resets",
    "made to reset": "resets",
    "continuation flood": "headers",
    "empty continuations": "headers",
    "huge headers": "resets",
    "header bomb": "headers",
    "empty data": "fragments",
    "one byte a frame": "fragments",
    "empty calls": "resets",
    "calls of no method": "resets",
    "priority flood": "ignored_frames",
    "frames of no known type": "ignored_frames",
    "window updates": "window_updates",
    "tiny windows": "window_updates",
    "streams never finished": "streams",
    "malformed messages": "resets",
}


@dataclass(slots=True)
class Victim:
    """A picker process."""

    pid: int
    port: int
    metrics_port: int
    session: aiohttp.ClientSession
    addresses: int = 1

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) << 10

    async def metric(self, name: str) -> float:
        """The sum of its samples that contain `name`, but for the times at which they were created."""
        async with self.session.get(f"http://127.0.0.1:{self.metrics_port}/metrics") as response:
            lines = [line for line in (await response.text()).splitlines() if "_created" not in line]
        return sum(float(line.split()[-1]) for line in lines if name in line and not line.startswith("#"))

    async def until(self, holds: Callable[[float], bool], name: str) -> None:
        """The metric is as it should be."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds(await self.metric(name)):  # noqa: ASYNC110 it is another process
                await asyncio.sleep(0.05)


@asynccontextmanager
async def victim(*options: str, tls: str = "off") -> AsyncIterator[Victim]:
    port, health, metrics = free_ports(3)
    at = ("--listen", f"127.0.0.1:{port}", "--health-listen", f"127.0.0.1:{health}", "--metrics-port", str(metrics))
    command = (sys.executable, "-m", "aegaeon_picker", "--endpoints", "127.0.0.1:1", "--grace", "0", "--tls", tls)
    child = await asyncio.create_subprocess_exec(*command, *at, *options)
    try:
        async with aiohttp.ClientSession() as session:
            async with plain_channel(f"127.0.0.1:{health}") as channel:
                await asyncio.wait_for(channel.channel_ready(), PATIENCE_S)
            yield Victim(child.pid, port, metrics, session)
    finally:
        child.terminate()
        assert await asyncio.wait_for(child.wait(), PATIENCE_S) == 0


@dataclass(slots=True)
class Innocent:
    """Calls over one connection: one that lasts, and short ones beside it. Any failure is raised."""

    channel: grpc.aio.Channel
    took_s: list[float] = field(default_factory=list)

    async def until(self, end: asyncio.Event) -> list[float]:
        method = self.channel.stream_stream(PROCESS)
        lasting = method()
        took_s = []
        while not end.is_set() or not took_s:
            began = time.perf_counter()
            await lasting.write(MESSAGE)
            assert await asyncio.wait_for(lasting.read(), PATIENCE_S) == answer()
            short = method()
            await short.write(MESSAGE)
            assert await asyncio.wait_for(short.read(), PATIENCE_S) == answer()
            await short.done_writing()
            assert await asyncio.wait_for(short.code(), PATIENCE_S) == grpc.StatusCode.OK
            took_s.append(time.perf_counter() - began)
            await asyncio.sleep(0.005)
        lasting.cancel()
        return took_s


def answer() -> bytes:
    response = ProcessingResponse()
    streamed = response.request_body.response.body_mutation.streamed_response
    streamed.body = b"tokens"
    return response.SerializeToString()


async def measured(innocent: Innocent, seconds: float) -> float:
    end = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, end.set)
    return statistics.median(await innocent.until(end))


async def attacked(of: Victim, innocent: Innocent, *names: str) -> float:
    """Median seconds of a call while all of those attacks run, each from an address of its own."""
    end = asyncio.Event()
    calls = asyncio.create_task(innocent.until(end))
    children = []
    for name in names:
        of.addresses += 1
        argv = (sys.executable, "-m", "picker.hostile", name, str(of.port), str(ATTACK_S), f"127.0.0.{of.addresses}")
        children.append(await asyncio.create_subprocess_exec(*argv, cwd=Path(__file__).parent.parent))
    for child in children:
        assert await asyncio.wait_for(child.wait(), PATIENCE_S) == 0
    end.set()
    return statistics.median(await calls)


def groups() -> list[list[str]]:
    """All attacks, AT_ONCE at most in a group and each of it counted by another reason."""
    made: list[list[str]] = []
    for name in ATTACKS:
        kind = REASONS.get(name, name)
        fitting = (g for g in made if len(g) < AT_ONCE and kind not in [REASONS.get(other, other) for other in g])
        if (group := next(fitting, None)) is None:
            made.append(group := [])
        group.append(name)
    return made


async def test_no_attack_ends_or_delays_the_calls_of_others_and_each_is_counted_by_its_reason() -> None:
    """One process for all of them, so that what they leave behind adds up."""
    options = ("--max-streams-per-connection", "300")  # so that a second is enough to open too many
    async with victim(*options) as of, plain_channel(f"127.0.0.1:{of.port}") as channel:
        innocent = Innocent(channel)
        quiet_s = await measured(innocent, 0.5)
        before = of.rss_bytes()
        for names in groups():
            counted = {name: await of.metric(f'reason="{REASONS[name]}"') for name in names if name in REASONS}
            took_s = await attacked(of, innocent, *names)
            if took_s > SLOWER * quiet_s + SLOWER_S:  # of two processors: each alone must leave others theirs
                for name in names:
                    assert await attacked(of, innocent, name) <= SLOWER * quiet_s + SLOWER_S, name
            assert of.rss_bytes() - before < GROWTH_BYTES, names
            for name, times in counted.items():
                async with asyncio.timeout(PATIENCE_S):  # a second may be too short for an attacker on a busy machine
                    while await of.metric(f'reason="{REASONS[name]}"') <= times:
                        await attacked(of, innocent, name)
        assert await of.metric("aegaeon_picker_buffered_bytes") == 0
        assert await of.metric('reason="failed"') == 0


async def test_several_attacks_at_once() -> None:
    async with victim() as of, plain_channel(f"127.0.0.1:{of.port}") as channel:
        innocent = Innocent(channel)
        quiet_s = await measured(innocent, 0.5)
        before = of.rss_bytes()
        took_s = await attacked(of, innocent, "window zero", "messages never finished", "ping flood")
        assert took_s <= SLOWER * quiet_s + 2 * SLOWER_S
        assert of.rss_bytes() - before < GROWTH_BYTES


@pytest.mark.parametrize("tls", ["off", "selfSigned"])
async def test_connections_of_one_address_are_bounded_and_others_are_accepted(tls: str) -> None:
    """They send nothing: no TLS, no preface."""
    options = ("--max-connections-per-address", "50", "--max-connections", "60")
    async with victim(*options, tls=tls) as of:
        before = of.rss_bytes()
        opened = [connect(of.port, "127.0.0.2") for _ in range(200)]
        await of.until(lambda value: value >= 150, 'reason="connections"')
        assert await of.metric("aegaeon_picker_connections") == 50
        other = connect(of.port, "127.0.0.3")
        await of.until(lambda value: value >= 51, "aegaeon_picker_connections")
        assert of.rss_bytes() - before < GROWTH_BYTES
        for each in [*opened, other]:
            each.close()
        await of.until(lambda value: value == 0, "aegaeon_picker_connections")


async def test_an_address_that_connects_too_often_is_rate_limited() -> None:
    async with victim() as of:
        for _ in range(400):
            connect(of.port, "127.0.0.2").close()
        await of.until(lambda value: value > 0, 'reason="connection_rate"')
        async with plain_channel(f"127.0.0.1:{of.port}") as channel:
            await measured(Innocent(channel), 0)
