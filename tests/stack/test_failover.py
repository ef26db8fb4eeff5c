"""The scheduler is cut off, paused or replaced while streams run: real processes, and a network that closes nothing."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import openai
import pytest
from stack.network import Leases, OtherNode, Relay, kubeconfig, other_node
from stack.pods import KEY, MEMORY, Pods
from stack.traffic import PROMPTS, stream

from aegaeon_cli.demo import clients
from aegaeon_cli.demo.stack import free_port
from aegaeon_kube.lease import TERM
from aegaeon_proto.leaders import ANSWER_S, ASK_EVERY_S

JOBS = [("llama", prompt) for prompt in PROMPTS]
PATIENCE_S = 60  # against what hangs; on a machine that is busy with much else, all takes long


class Net:
    """A relay for every pair of processes that speak to each other."""

    def __init__(self, exits: AsyncExitStack) -> None:
        self._exits = exits
        self._relays: dict[tuple[str, str], Relay] = {}

    async def wire(self, one: str, other: str, port: int) -> int:
        relay = self._relays[one, other] = Relay(port)
        await relay.start()
        self._exits.push_async_callback(relay.stop)
        return relay.port

    def port(self, one: str, other: str) -> int:
        return self._relays[one, other].port

    def cut(self, *names: str) -> None:
        """Messages from and to these processes are dropped."""
        for relay in self._of(names):
            relay.cut()

    def heal(self, *names: str) -> None:
        for relay in self._of(names):
            relay.heal()

    def cut_between(self, one: str, other: str) -> None:
        self._relays[one, other].cut()

    def _of(self, names: tuple[str, ...]) -> list[Relay]:
        return [relay for ends, relay in self._relays.items() if set(ends) & set(names)]


@asynccontextmanager
async def pool(
    models: dict[str, Path], folder: Path, schedulers: tuple[str, ...] = ("scheduler", "standby"), engines: int = 2
) -> AsyncIterator[tuple[Pods, Net, Leases, openai.AsyncOpenAI]]:
    """The first scheduler leads; each pair of processes has a link of its own."""
    pods = Pods(models, folder, MEMORY)
    names = ["gateway", *(f"engine-{number}" for number in range(engines))]
    async with AsyncExitStack() as exits:
        leases = await exits.enter_async_context(Leases().serving())
        net = Net(exits)
        exits.push_async_callback(pods.kill)
        for scheduler in schedulers:
            if scheduler != "scheduler":
                pods.ports |= {
                    scheduler: free_port(),
                    f"{scheduler}-admin": free_port(),
                    f"{scheduler}-pages": free_port(),
                }
            for name in names:
                await net.wire(name, scheduler, pods.ports[scheduler])
            file = kubeconfig(folder / f"{scheduler}.kubeconfig", await net.wire(scheduler, "api", leases.port))
            await pods.start_scheduler(scheduler, file)
            await pods.said(scheduler, "serving" if scheduler == schedulers[0] else "waiting to lead")
        pods.schedulers = lambda name: [f"127.0.0.1:{net.port(name, one)}" for one in schedulers]
        await asyncio.gather(pods.start_gateway(), *(pods.start_engine(name) for name in names[1:]))
        client = clients.async_client(pods.url, KEY, timeout=90)
        with shown(pods):
            yield pods, net, leases, await exits.enter_async_context(client)


@pytest.fixture
def shm_folder() -> Iterator[Path]:
    """Of segments: on a tmpfs."""
    with tempfile.TemporaryDirectory(prefix="aegaeon-failover-", dir="/dev/shm") as folder:
        yield Path(folder)


@contextmanager
def shown(pods: Pods) -> Iterator[None]:
    """What they wrote, when the test fails."""
    try:
        yield
    except BaseException:
        for name in pods.processes:
            print(f"---- {name}\n{pods.log(name)[-4000:]}")  # noqa: T201  # pytest shows it with the failure
        raise


async def health(pods: Pods, scheduler: str) -> float:
    """Seconds until the gateway says so of its scheduler, on /health and in its metrics."""
    began = time.monotonic()
    async with asyncio.timeout(PATIENCE_S), aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{pods.url}/health") as answer:
                assert answer.status == 200
                if (await answer.json())["scheduler"] == scheduler:
                    return time.monotonic() - began
            await asyncio.sleep(0.05)  # another process is watched


@pytest.fixture(scope="module")
def alone() -> list[str]:
    """The answer to each of JOBS when it runs alone; the first test of the file fills it."""
    return []


async def answers_alone(client: openai.AsyncOpenAI, alone: list[str]) -> list[str]:
    """What JOBS answer when nothing happens; at least the first is asked, so that the model is served."""
    if alone:
        assert await stream(client, *JOBS[0]) == alone[0]
    else:
        alone += [await stream(client, *job) for job in JOBS]
    return alone


async def under_way(client: openai.AsyncOpenAI, alone: list[str]) -> tuple[list[str], list[asyncio.Task[str]]]:
    """The answers of JOBS alone, and JOBS again, of which at least one has begun to answer."""
    expected, begun = await answers_alone(client, alone), asyncio.Event()
    running = [asyncio.create_task(stream(client, *job, begun.set)) for job in JOBS]
    await begun.wait()
    return expected, running


@pytest.mark.parametrize("fault", ["cut off", "paused"])
async def test_a_gateway_reports_its_scheduler_unavailable_after_seconds_of_silence(
    four_models: dict[str, Path], shm_folder: Path, alone: list[str], fault: str
) -> None:
    async with pool({"llama": four_models["llama"]}, shm_folder, ("scheduler",), 1) as (pods, net, _, client):
        expected = await answers_alone(client, alone)
        await health(pods, "attached")
        if fault == "cut off":
            net.cut("scheduler")
        else:
            pods.processes["scheduler"].send_signal(signal.SIGSTOP)
        took = await health(pods, "unavailable")
        print(f"{fault}: known after {took:.1f} s; it should be {ASK_EVERY_S + ANSWER_S:g} s at most")  # noqa: T201
        if fault == "cut off":
            net.heal("scheduler")
        else:
            pods.processes["scheduler"].send_signal(signal.SIGCONT)
        await health(pods, "attached")
        assert await asyncio.gather(*(stream(client, *job) for job in JOBS)) == expected


async def test_a_standby_takes_over_from_a_scheduler_whose_node_vanished_and_streams_lose_nothing(
    four_models: dict[str, Path], shm_folder: Path, alone: list[str]
) -> None:
    async with pool({"llama": four_models["llama"]}, shm_folder) as (pods, net, leases, client):
        expected, running = await under_way(client, alone)
        term = int(leases.objects["pool"]["metadata"]["annotations"][TERM])
        net.cut("scheduler", "engine-1")
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            assert await stream(client, *JOBS[0]) == expected[0]
        print(f"cut to the end of the first new answer: {time.monotonic() - began:.1f} s")  # noqa: T201
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*running) == expected
        lease = leases.objects["pool"]
        assert lease["spec"]["holderIdentity"] == "standby"
        assert int(lease["metadata"]["annotations"][TERM]) > term
        net.heal("scheduler", "engine-1")
        async with asyncio.timeout(PATIENCE_S):
            assert await pods.processes["scheduler"].wait() == 1, "another one leads: it must end"
        await pods.said("engine-1", "attached to")
        assert await asyncio.gather(*(stream(client, *job) for job in JOBS)) == expected


async def test_a_leader_that_cannot_reach_the_api_server_leads_until_another_does(
    four_models: dict[str, Path], shm_folder: Path, alone: list[str]
) -> None:
    """Cut off from the API server alone, it has its engines and gateways still: they leave it for the higher term."""
    async with pool({"llama": four_models["llama"]}, shm_folder, engines=1) as (pods, net, leases, client):
        expected, running = await under_way(client, alone)
        net.cut_between("scheduler", "api")
        await pods.said("standby", "leading in term")
        term = leases.objects["pool"]["metadata"]["annotations"][TERM]
        await pods.said("gateway", f"term {term} ")  # why it leaves the former leader, in either of two sentences
        await pods.said("engine-0", f"term {term} ")
        assert await stream(client, *JOBS[0]) == expected[0]
        assert await asyncio.gather(*running) == expected
        assert pods.processes["scheduler"].returncode is None, "it did not notice, and is fenced off"


async def test_a_scheduler_that_shuts_down_hands_over_leadership_at_once(
    four_models: dict[str, Path], shm_folder: Path, alone: list[str]
) -> None:
    async with pool({"llama": four_models["llama"]}, shm_folder, engines=1) as (pods, _, leases, client):
        expected, running = await under_way(client, alone)
        assert await pods.end("scheduler") == 0
        await pods.said("standby", "leading in term")
        assert await stream(client, *JOBS[0]) == expected[0]
        assert await asyncio.gather(*running) == expected
        assert leases.objects["pool"]["spec"]["holderIdentity"] == "standby"


async def test_a_scheduler_killed_during_an_api_server_outage_leads_again_in_its_term(
    four_models: dict[str, Path], shm_folder: Path, alone: list[str]
) -> None:
    async with pool({"llama": four_models["llama"]}, shm_folder, ("scheduler",), 1) as (pods, net, leases, client):
        term = leases.objects["pool"]["metadata"]["annotations"][TERM]
        expected, running = await under_way(client, alone)
        net.cut_between("scheduler", "api")
        pods.processes["scheduler"].kill()
        await pods.processes["scheduler"].wait()
        await pods.start_scheduler("scheduler", shm_folder / "scheduler.kubeconfig")
        await pods.said("scheduler", "leading in the term before this pod's restart")
        assert await asyncio.gather(*running) == expected
        assert await stream(client, *JOBS[0]) == expected[0]
        net.heal("scheduler")
        await pods.said("scheduler", f"leading in term {term}")


@pytest.fixture
def node() -> Iterator[OtherNode]:
    try:
        with other_node() as made:
            yield made
    except PermissionError as error:
        pytest.skip(str(error))


async def test_a_standby_takes_over_when_the_link_of_the_schedulers_node_goes_down(
    four_models: dict[str, Path],
    shm_folder: Path,
    alone: list[str],
    node: OtherNode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real link: packets are lost, in both directions, and so are those that would open a connection."""
    for name in ("NO_PROXY", "no_proxy"):  # a kubeconfig's server is asked by way of the environment's proxy
        monkeypatch.setenv(name, node.here)
    pods = Pods({"llama": four_models["llama"]}, shm_folder, MEMORY)
    pods.nodes = dict.fromkeys(("scheduler", "engine-1"), (node.there, node.inside))
    pods.nodes |= dict.fromkeys(("standby", "engine-0", "gateway"), (node.here, ()))
    async with AsyncExitStack() as exits:
        leases = await exits.enter_async_context(Leases(node.here).serving())
        exits.push_async_callback(pods.kill)
        exits.enter_context(shown(pods))
        file = kubeconfig(shm_folder / "kubeconfig", leases.port, node.here)
        pods.ports |= {name: free_port() for name in ("standby", "standby-admin", "standby-pages")}
        pods.schedulers = lambda _: [f"{pods.host(name)}:{pods.ports[name]}" for name in ("scheduler", "standby")]
        await pods.start_scheduler("scheduler", file)
        await pods.said("scheduler", "serving")
        await pods.start_scheduler("standby", file)
        await asyncio.gather(pods.start_gateway(), *(pods.start_engine(f"engine-{number}") for number in range(2)))
        client = await exits.enter_async_context(clients.async_client(pods.url, KEY, timeout=90))
        expected, running = await under_way(client, alone)
        node.link("down")
        began = time.monotonic()
        async with asyncio.timeout(PATIENCE_S):
            await client.completions.create(model="llama", prompt="Hello", max_tokens=1)
            print(f"link down to the first new answer: {time.monotonic() - began:.1f} s")  # noqa: T201
            assert await asyncio.gather(*running) == expected
        node.link("up")
        async with asyncio.timeout(PATIENCE_S):
            assert await pods.processes["scheduler"].wait() == 1
        assert leases.objects["pool"]["spec"]["holderIdentity"] == "standby"
