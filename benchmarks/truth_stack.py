"""A trace against a real stack: every request at its time, every token with the time at which its reader had it."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

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


def write_manifests(folder: Path, policy: str, slo: Slo, engines: int = 1, copies: int = 1) -> None:
    """The quickstart under this policy and objective; `paper` on one engine of each role, others on `engines`."""
    pool = yaml.safe_load((QUICKSTART / "gpupool.yaml").read_text())
    spec = pool["spec"]
    for role in ("prefill", "decode", "engines"):
        spec.pop(role, None)
    counts = {"prefill": 1, "decode": 1} if policy == "paper" else {"engines": engines}
    spec.update({role: {"replicas": count} for role, count in counts.items()})
    spec["scheduling"] = {"policy": policy, "hold": "120s"}
    spec["tuning"]["prefillChunkTokens"] = 512
    if copies > 1:
        spec["memory"]["hostModelCache"] = f"{32 * copies}Mi"
    models = yaml.safe_load((QUICKSTART / "modelpool.yaml").read_text())
    given = models["spec"]["models"]
    models["spec"]["models"] = [
        {
            "name": copy_of(model["name"], number),
            "source": {"hostPath": copy_of(model["source"]["hostPath"], number)},
            "slo": {"ttft": f"{1000 * slo.ttft_s:.0f}ms", "tbt": f"{1000 * slo.tbt_s:.1f}ms"},
        }
        for number in range(copies)
        for model in given
    ]
    (folder / "gpupool.yaml").write_text(yaml.safe_dump(pool))
    (folder / "modelpool.yaml").write_text(yaml.safe_dump(models))


def copy_of(name: str, number: int) -> str:
    """The name of a model's copy; the first one is the model itself."""
    return f"{name}-{number}" if number else name


def write_models(made: Path, folder: Path, copies: int) -> Path:
    """Copies of the models as models of their own: other weights, so that no slabs are shared. Returns their folder."""
    if copies == 1:
        return made
    for source in (path for path in made.iterdir() if path.is_dir()):
        for number in range(copies):
            target = folder / copy_of(source.name, number)
            if not target.exists():
                shutil.copytree(source, target)
                for file in target.glob("*.safetensors"):
                    _alter(file, number)
    return folder


def _alter(file: Path, number: int) -> None:
    """Scale a norm by a thousandth or so: other bytes, the same work."""
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    norm = min(name for name in tensors if "norm" in name)
    tensors[norm] = tensors[norm] * (1 + number / 1000)
    save_file(tensors, file, metadata)


def moves(log: Path) -> dict[str, int]:
    """How often the scheduler's event log has a copy of KV to another engine, out to the host tier, and a load."""
    text = log.read_text("utf-8") if log.exists() else ""
    return {what: text.count(f'"_":"{what}"') for what in ("Adopt", "SwapOut", "Load")}


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
    """One model on an engine for itself, medians in seconds: to the first token of a prompt of PROBE_PROMPT, and from
    token to token with one request and with PROBE_BATCH."""

    ttft_s: float
    step_s: float
    batch_step_s: float


PROBE_PROMPT, PROBE_TOKENS, PROBE_BATCH = 32, 96, 8


async def probe(url: str, names: Sequence[str], rounds: int = 3, together: int = 1) -> dict[str, Alone]:
    """Every model alone on its engine, `together` at once, through all processes: what backend measurements leave out
    (GIL, control, gateway, and the processors that engines of one machine share)."""
    found = {}
    for begin in range(0, len(names), together):
        some = names[begin : begin + together]
        singles = [await _at_once(url, some, 1) for _ in range(rounds)]
        many = await _at_once(url, some, PROBE_BATCH)
        for name in some:
            single = [reply for each in singles for reply in each[name]]
            first = median(reply.times[0] for reply in single[1:])  # the first one loads the model
            found[name] = Alone(first, _pace(single), _pace(many[name]))
    return found


async def _at_once(url: str, names: Sequence[str], count: int) -> dict[str, list[Reply]]:
    """So many requests of each, by model."""
    arrivals = tuple(
        Arrival(0.0, model, PROBE_PROMPT, PROBE_TOKENS) for model in range(len(names)) for _ in range(count)
    )
    replies = await replay(url, names, Workload(tuple(names), arrivals))
    for arrival, reply in zip(arrivals, replies, strict=True):
        if reply.error or len(reply.times) < PROBE_TOKENS:
            what = reply.error or "its stream ended"
            raise RuntimeError(f"{names[arrival.model]}: a probe got {len(reply.times)} tokens: {what}")
    return {name: replies[m * count : (m + 1) * count] for m, name in enumerate(names)}


def _pace(replies: Sequence[Reply]) -> float:
    """Seconds from token to token over the second half, when all are in the batch."""
    half = PROBE_TOKENS // 2
    return median((reply.times[-1] - reply.times[half]) / (PROBE_TOKENS - 1 - half) for reply in replies)
