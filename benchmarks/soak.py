"""Minutes' worth of random traffic against a real stack, as fast as it goes; after it everything must be back to empty.

A minute's worth is 480 requests: four models at two requests a second each, four times the paper's busiest. Three
engines have memory for fewer models than are asked for. Right after the start the same kinds of
requests warm every process up; what each holds then is what it may hold at the end, but for a stated slack.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from benchmarks.census import Holdings, Slack, growth, holdings
from benchmarks.exactness import ROLES, write_manifests
from benchmarks.report import Row, read_settings, report
from benchmarks.visits import Ending, Visitor, Visits, crowd
from prometheus_client.parser import text_string_to_metric_families

from aegaeon_cli.demo.stack import Stack, free_port
from aegaeon_cli.models import make_models
from aegaeon_cli.status import watch_status
from aegaeon_operator.spec import load_manifests
from aegaeon_proto.v1.gateway_pb2 import PoolStatus

SMALL = {"deviceBytes": "10Mi", "slabSize": "256Ki", "hostModelCache": "64Mi", "hostKv": "32Mi"}
A_MINUTE = 480  # requests
WARM_UP = 240  # requests
IDLE_S = 20.0
METRICS_S = 1.1
CACHES = 16  # mappings of an engine that are not slabs: weights of models on the host, segments
SHOWN = 10


async def idle(scheduler: str) -> PoolStatus:
    """The status once nothing is in use, or the last one after IDLE_S."""
    deadline = time.monotonic() + IDLE_S
    async for status in watch_status(scheduler, 0.1):
        if time.monotonic() > deadline or not (len(status.sequences) or any(used_blocks(status))):
            break
    return status


def used_blocks(status: PoolStatus) -> tuple[int, int]:
    """KV blocks in use over all instances: on devices, on hosts."""
    device = sum(shape.used_blocks for i in status.instances for shape in i.memory.shapes)
    return device, sum(shape.used_blocks for i in status.instances for shape in i.memory.host_shapes)


def census(stack: Stack, status: PoolStatus) -> dict[str, Holdings]:
    """Of every process of the stack, by the pod's name."""
    pods = ["scheduler", "gateway", *(instance.instance for instance in status.instances)]
    return {name: holdings(stack.pod(name)) for name in pods}


@dataclass(frozen=True, slots=True)
class Served:
    """What the gateway has of its clients, by its own metrics."""

    connections: int
    open_streams: int


async def left_alone(sockets: Path) -> Served:
    """The gateway once it knows that its clients are gone, whose connections closed a moment ago; or after IDLE_S."""
    deadline = time.monotonic() + IDLE_S
    connector = aiohttp.UnixConnector(str(sockets / "metrics.sock"))
    async with aiohttp.ClientSession(connector=connector) as session:
        while True:
            await asyncio.sleep(METRICS_S)  # they are up to a second old
            async with session.get("http://gateway/metrics") as response:
                served = served_by(await response.text())
            if not served.connections or time.monotonic() > deadline:
                return served


def served_by(exposition: str) -> Served:
    """From the gateway's metrics in Prometheus' text format."""
    samples = [sample for family in text_string_to_metric_families(exposition) for sample in family.samples]
    connections, streams = (
        round(sum(sample.value for sample in samples if sample.name == f"aegaeon_gateway_{name}"))
        for name in ("connections", "open_streams")
    )
    return Served(connections, streams)


def traffic_rows(endings: list[Ending], seconds: float) -> list[Row]:
    """What the clients saw; prints the first answers that should not have been."""
    wrong = [ending for ending in endings if ending.wrong]
    for ending in wrong[:SHOWN]:
        print(f"wrong: {ending.visit.path} {ending.visit.body[:200]!r}: {ending.wrong}", flush=True)
    return [
        Row("requests", len(endings), "requests"),
        Row("of which refused, as they had to be", sum(e.visit.status != 200 for e in endings), "requests"),
        Row("of which the client left early", sum(e.left for e in endings), "requests"),
        Row("requests that did not end as they must", len(wrong), "requests", 0, "<="),
        Row("time that they took", seconds, "s"),
    ]


def pool_rows(status: PoolStatus, served: Served) -> list[Row]:
    """What the stack still holds of requests, all of which have ended."""
    device, host = used_blocks(status)
    down = sum(not instance.alive for instance in status.instances)
    return [
        Row("switches of all engines", sum(i.switches for i in status.instances), "switches"),
        Row("sequences that the scheduler knows", len(status.sequences), "sequences", 0, "<="),
        Row("sequences that engines hold", sum(i.sequences for i in status.instances), "sequences", 0, "<="),
        Row("requests that the gateway has open", served.open_streams, "requests", 0, "<="),
        Row("connections of clients that the gateway has", served.connections, "connections", 0, "<="),
        Row("KV blocks in use on devices", device, "blocks", 0, "<="),
        Row("KV blocks in use on hosts", host, "blocks", 0, "<="),
        Row("disconnected engines", down, "engines", 0, "<="),
    ]


def slab_rows(before: PoolStatus, status: PoolStatus, after: dict[str, Holdings]) -> list[Row]:
    """Of each engine. Idle models stay on a device; KV caches do not, nor anything on the host.

    A range keeps its last mapping, whichever model has the slab: each slab may be mapped once in each model's range,
    and those of the host, where blocks stay cached, in one.
    """
    free = {instance.instance: instance.memory.host_slabs_free for instance in before.instances}
    ranges = len(status.models)
    rows = []
    for instance in status.instances:
        name, memory = instance.instance, instance.memory
        kept = sum(shape.free_blocks for shape in (*memory.shapes, *memory.host_shapes))
        lost = free[name] - memory.host_slabs_free
        held = after[name].slab_mappings
        limit = ranges * instance.slabs + free[name] + CACHES
        rows += [
            Row(f"{name}: empty KV blocks that still keep slabs", kept, "blocks", 0, "<="),
            Row(f"{name}: leaked host slabs", lost, "slabs", 0, "<="),
            Row(f"{name}: mappings of slabs and caches", held, "mappings", limit, "<="),
        ]
    return rows


def end_rows(stack: Stack) -> list[Row]:
    """What Ctrl-C left."""
    for left in stack.leftovers:
        print(f"left behind: {left}", flush=True)
    status = stack.exit_status
    return [
        Row("exit status after Ctrl-C", -1 if status is None else abs(status), "status", 0, "<="),
        Row("processes, run folders and shared memory left behind", len(stack.leftovers), "things", 0, "<="),
    ]


async def run(arguments: argparse.Namespace) -> bool:
    """The whole soak; True when every figure holds."""
    with tempfile.TemporaryDirectory() as folder:
        write_manifests(Path(folder), arguments.policy, SMALL, "50ms")
        names = [model.name for model in load_manifests(Path(folder), arguments.models).pools[0].models]
        async with Stack(Path(folder), arguments.models, free_port()) as stack:
            rows = await soaked(stack, Visits(names, arguments.seed), arguments)
    name = "soak" if arguments.policy == "slack" else f"soak-{arguments.policy}"
    good = report(name, rows + end_rows(stack), arguments.short)
    if not good:
        print("the stack's last lines:\n" + "\n".join(stack.log().splitlines()[-60:]), flush=True)
    return good


async def soaked(stack: Stack, visits: Visits, arguments: argparse.Namespace) -> list[Row]:
    """Warm up, count, soak, count again."""
    scheduler = stack.state.scheduler
    async with Visitor(stack.state.url) as visitor:
        warm = await crowd(visitor, visits.draw, WARM_UP, arguments.width)
    at_first = await idle(scheduler)
    await left_alone(stack.state.sockets)
    before = census(stack, at_first)
    began = time.monotonic()
    async with Visitor(stack.state.url) as visitor:
        endings = await crowd(visitor, visits.draw, round(A_MINUTE * arguments.minutes), arguments.width)
    seconds = time.monotonic() - began
    status = await idle(scheduler)
    served = await left_alone(stack.state.sockets)
    after = census(stack, status)
    rows = traffic_rows(warm + endings, seconds) + pool_rows(status, served)
    return rows + slab_rows(at_first, status, after) + growth(before, after, Slack())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how many minutes' worth of requests")
    parser.add_argument("--policy", choices=tuple(ROLES), default="slack", help="default: slack")
    parser.add_argument("--models", type=Path, required=True, help="folder of `aegaeon models make`")
    parser.add_argument("--width", type=int, default=24, help="clients at a time")
    parser.add_argument("--seed", type=int, default=0)
    arguments = read_settings(parser)
    arguments.models = arguments.models.absolute()
    make_models(arguments.models, print)
    sys.exit(0 if asyncio.run(run(arguments)) else 1)


if __name__ == "__main__":
    main()
