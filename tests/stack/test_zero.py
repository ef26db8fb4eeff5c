"""Pools that scale to zero: a request starts an engine and is held meanwhile; the idle engine is removed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import openai
import yaml
from prometheus_client.parser import text_string_to_metric_families
from stack.launch import manifests, running
from stack.traffic import PROMPTS, stream, until_empty
from tests.scaling_queries import scaling_query

from aegaeon_cli.demo import clients
from aegaeon_cli.demo.errors import StackError
from aegaeon_cli.demo.stack import Stack, free_port

PATIENCE_S = 60
OVERHEAD_S = 2.0  # the bar: of a cold start, what is neither the engine's start nor the model's load


def from_zero(models: dict[str, Path], idle: str = "1500ms", **roles: dict[str, int]) -> str:
    """A pool whose engines start on demand and are removed after `idle`."""
    pool, served = yaml.safe_load_all(manifests(models, engines=1))
    del pool["spec"]["engines"]
    pool["spec"] |= {**roles, "autoscaling": {"idle": idle}}
    return yaml.safe_dump_all([pool, served])


ONE = {"replicas": 0, "min": 0, "max": 1}


def client_of(stack: Stack) -> openai.AsyncOpenAI:
    return clients.async_client(stack.state.url, timeout=PATIENCE_S)


def runs(stack: Stack, pod: str) -> bool:
    try:
        stack.pod(pod)
    except StackError:
        return False
    return True


async def until_gone(stack: Stack, *pods: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while any(runs(stack, pod) for pod in pods):  # noqa: ASYNC110  # other processes are watched
            await asyncio.sleep(0.05)


@dataclass(frozen=True)
class ColdStart:
    """Moments of one, on the machine's monotonic clock."""

    asked: float
    spawned: float
    attached: float
    loaded: float
    first_token: float

    @property
    def overhead_s(self) -> float:
        """What is neither the engine's start nor the model's way to the device."""
        return (self.first_token - self.asked) - (self.attached - self.spawned) - (self.loaded - self.attached)

    def __str__(self) -> str:
        return (
            f"first token after {self.first_token - self.asked:.2f} s: "
            f"engine start {self.attached - self.spawned:.2f} s, load {self.loaded - self.attached:.2f} s, "
            f"{self.spawned - self.asked:.2f} s before and {self.first_token - self.loaded:.2f} s after"
        )


def spawned(pid: int) -> float:
    """When a process was started, on the monotonic clock."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])
    since_boot = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - since_boot


def moments(record: Path) -> tuple[float, float]:
    """When the newest engine attached, and when its first load was done, by the scheduler's event log."""
    entries = [json.loads(line) for line in record.read_text().splitlines()[1:]]
    first = max(place for place, one in enumerate(entries) if one["event"]["_"] == "InstanceUp")
    loads = {c["id"] for one in entries[first:] for c in one["commands"] if c.get("body", {}).get("_") == "Load"}
    done = (one for one in entries[first:] if one["event"]["_"] == "CommandDone" and one["event"]["id"] in loads)
    return entries[first]["t"], next(done)["t"]


async def cold_start(stack: Stack, record: Path, client: openai.AsyncOpenAI) -> tuple[ColdStart, str]:
    asked, came = time.monotonic(), list[float]()
    answer = await stream(client, "llama", PROMPTS[0], lambda: came.append(time.monotonic()))
    start = spawned(stack.pod("engine-0"))
    return ColdStart(asked, start, *moments(record), came[0]), answer


async def test_a_request_starts_an_engine_is_answered_and_the_idle_engine_is_removed(
    four_models: dict[str, Path], tmp_path: Path
) -> None:
    models = {name: four_models[name] for name in ("llama", "qwen3")}
    record = tmp_path / "events.jsonl"
    with running(from_zero(models, engines=ONE), record) as stack:
        assert not runs(stack, "engine-0")
        async with client_of(stack) as client:
            first, answer = await cold_start(stack, record, client)
            assert await stream(client, "llama", PROMPTS[0]) == answer
            await until_gone(stack, "engine-0")
            second, again = await cold_start(stack, record, client)
    assert again == answer
    print(f"\n{first}\n{second}")  # noqa: T201  # the figures of RESULTS.md
    assert min(first.overhead_s, second.overhead_s) <= OVERHEAD_S


async def test_both_roles_of_a_split_pool_are_started_and_removed_together(four_models: dict[str, Path]) -> None:
    with running(from_zero({"llama": four_models["llama"]}, prefill=ONE, decode=ONE)) as stack:
        async with client_of(stack) as client:
            answer = await stream(client, "llama", PROMPTS[0])
            await until_gone(stack, "prefill-0", "decode-0")
            assert await stream(client, "llama", PROMPTS[0]) == answer


SUM = re.compile(r"sum\((\w+)\{(.*?)\}\)")


def evaluated(query: str, text: str) -> float:
    """A query of the examples on the text of one scheduler: sums of its series, which a scrape gives the labels."""
    totals = dict.fromkeys((name for name, _ in SUM.findall(query)), 0.0)
    assert SUM.sub("", query).split() == ["+"] * (len(totals) - 1), "the test knows sums alone"
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in totals:
                totals[sample.name] += sample.value
    return sum(totals.values())


async def test_metrics_show_requests_that_wait_for_the_first_engine(four_models: dict[str, Path]) -> None:
    port = free_port()
    pool, served = yaml.safe_load_all(from_zero({"llama": four_models["llama"]}, idle="1h", engines=ONE))
    pool["spec"]["scheduling"]["metricsPort"] = port
    examples = ("keda.yaml", "prometheus-adapter.yaml")
    queries = [scaling_query(example, namespace="default", pool="test") for example in examples]

    async def values() -> set[float]:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/metrics") as page:
            text = await page.text()
        return {evaluated(query, text) for query in queries}

    with running(yaml.safe_dump_all([pool, served])) as stack:
        async with client_of(stack) as client:
            assert await values() == {0}
            asked = [asyncio.create_task(stream(client, "llama", prompt)) for prompt in PROMPTS]
            async with asyncio.timeout(PATIENCE_S):
                while min(await values()) < len(asked):  # noqa: ASYNC110  # another process is watched
                    await asyncio.sleep(0.05)
            await asyncio.gather(*asked)
            await until_empty(stack)
            async with asyncio.timeout(PATIENCE_S):  # the count may fall after the memory is free
                while await values() != {0}:  # noqa: ASYNC110  # another process is watched
                    await asyncio.sleep(0.05)
