"""A trace against a real stack: every request at its time, every token with the time at which its reader had it."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import yaml

from aegaeon_cli.status import read_status
from aegaeon_proto.v1.engine_pb2 import Role
from aegaeon_scheduler.core.domain import Slo
from aegaeon_simulator.workload import Arrival, Workload

QUICKSTART = Path(__file__).parents[1] / "examples" / "quickstart"
REQUEST_S = 120.0
_FIRST_TOKEN, _LAST_TOKEN = 6, 2000  # ids that every vocabulary has and that are no special ones


@dataclass(slots=True)
class Reply:
    """`times`: seconds from sending to each token of `tokens`; `late_s`: how much later than asked the request was
    sent."""

    late_s: float
    times: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    error: str = ""


def write_manifests(folder: Path, policy: str, slo: Slo) -> None:
    """The quickstart under this policy and objective; `aegaeon` on one engine for both, `paper` on one of each."""
    pool = yaml.safe_load((QUICKSTART / "gpupool.yaml").read_text())
    spec = pool["spec"]
    for role in ("prefill", "decode", "engines"):
        spec.pop(role, None)
    roles = ("prefill", "decode") if policy == "paper" else ("engines",)
    spec.update({role: {"replicas": 1} for role in roles})
    spec["scheduling"] = {"policy": policy, "hold": "120s"}
    spec["tuning"]["prefillChunkTokens"] = 512
    models = yaml.safe_load((QUICKSTART / "modelpool.yaml").read_text())
    for model in models["spec"]["models"]:
        model["slo"] = {"ttft": f"{1000 * slo.ttft_s:.0f}ms", "tbt": f"{1000 * slo.tbt_s:.0f}ms"}
    (folder / "gpupool.yaml").write_text(yaml.safe_dump(pool))
    (folder / "modelpool.yaml").write_text(yaml.safe_dump(models))


async def replay(url: str, names: Sequence[str], workload: Workload) -> list[Reply]:
    """Send every arrival at its time; answers in the order of the arrivals."""
    timeout, connector = aiohttp.ClientTimeout(total=REQUEST_S), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        began = time.monotonic() + 0.2
        async with asyncio.TaskGroup() as group:
            tasks = []
            for index, arrival in enumerate(workload.arrivals):
                prompt = prompt_of(index, arrival.input_tokens)
                body = _body(names[arrival.model], prompt, arrival.output_tokens)
                tasks.append(group.create_task(_ask(session, url, body, began + arrival.t_s)))
    return [task.result() for task in tasks]


def prompt_of(seed: int, tokens: int) -> list[int]:
    """The prompt of the arrival with this index: token ids that every vocabulary has."""
    chosen = random.Random(seed)
    return [chosen.randrange(_FIRST_TOKEN, _LAST_TOKEN) for _ in range(tokens)]


def _body(model: str, prompt: list[int], tokens: int) -> dict[str, Any]:
    return {
        "model": model, "prompt": prompt, "max_tokens": tokens, "stream": True, "temperature": 0.0,
        "return_token_ids": True, "ignore_eos": True,
    }  # fmt: skip


async def _ask(session: aiohttp.ClientSession, url: str, body: dict[str, Any], at: float) -> Reply:
    await asyncio.sleep(max(0.0, at - time.monotonic()))
    sent = time.monotonic()
    reply = Reply(sent - at)
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                reply.error = f"HTTP {response.status}: {await response.text()}"
                return reply
            async for line in response.content:
                if line.startswith(b"data: {"):
                    _take(json.loads(line[6:]), time.monotonic() - sent, reply)
    except (aiohttp.ClientError, TimeoutError) as error:
        reply.error = f"{type(error).__name__}: {error}"
    return reply


def _take(event: dict[str, Any], at_s: float, reply: Reply) -> None:
    if "error" in event:
        reply.error = str(event["error"])
        return
    for choice in event["choices"]:
        tokens = choice.get("token_ids") or ()
        reply.times += [at_s] * len(tokens)
        reply.tokens += tokens


async def switches(scheduler: str) -> int:
    """Changes of the running model so far, of all engines that decode."""
    status = await read_status(scheduler)
    return sum(i.switches for i in status.instances if i.role != Role.ROLE_PREFILL)


@dataclass(frozen=True, slots=True)
class Alone:
    """One model by itself on the stack, medians in seconds: to the first token of a prompt of PROBE_PROMPT, and from
    token to token with one request and with PROBE_BATCH."""

    ttft_s: float
    step_s: float
    batch_step_s: float


PROBE_PROMPT, PROBE_TOKENS, PROBE_BATCH = 32, 96, 8


async def probe(url: str, names: Sequence[str], rounds: int = 3) -> dict[str, Alone]:
    """Every model alone, through all processes: what backend measurements leave out (GIL, control, gateway)."""
    found = {}
    for name in names:
        single = [reply for _ in range(rounds) for reply in await _together(url, name, 1)]
        many = await _together(url, name, PROBE_BATCH)
        first = median(reply.times[0] for reply in single[1:])  # the first one loads the model
        found[name] = Alone(first, _pace(single), _pace(many))
    return found


async def _together(url: str, name: str, count: int) -> list[Reply]:
    arrivals = tuple(Arrival(0.0, 0, PROBE_PROMPT, PROBE_TOKENS) for _ in range(count))
    replies = await replay(url, [name], Workload((name,), arrivals))
    for reply in replies:
        if reply.error or len(reply.times) < PROBE_TOKENS:
            raise RuntimeError(f"{name}: a probe got {len(reply.times)} tokens: {reply.error or 'its stream ended'}")
    return replies


def _pace(replies: Sequence[Reply]) -> float:
    """Seconds from token to token over the second half, when all are in the batch."""
    half = PROBE_TOKENS // 2
    return median((reply.times[-1] - reply.times[half]) / (PROBE_TOKENS - 1 - half) for reply in replies)
