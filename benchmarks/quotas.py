"""Bursts against quotas of tokens, through a whole stack: how many tokens does a tenant get in any 60 seconds?

Twenty tenants, each with its own shape of burst: some requests at once, others one after the other, up to 128 choices,
answers to their limit, some clients that leave half-way. All are streamed, and a token is counted when its client has
it; a client that is refused asks again after the Retry-After. `python -m benchmarks.quotas [SECONDS]`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from benchmarks.report import Row, report

from aegaeon_cli.demo.stack import Stack, free_port
from aegaeon_cli.models import make_models

SPAN_S, LASTS_S, QUOTA = 60.0, 130.0, 400
NAME = "qwen3"


@dataclass(frozen=True, slots=True)
class Shape:
    """Of one tenant's burst. `at_once` clients, each of which asks `again_s` after its last answer; `leaves`: after so
    many tokens of an answer."""

    at_once: int
    n: int = 1
    max_tokens: int = 100
    words: int = 1
    again_s: float = 0.0
    leaves: int = 1 << 30


SHAPES = (
    *(Shape(clients) for clients in (1, 5, 20)),
    *(Shape(1, n=n) for n in (2, 8, 32, 128)),
    *(Shape(5, n=n, max_tokens=50) for n in (8, 128)),
    Shape(20, n=16, max_tokens=20),
    Shape(1, max_tokens=1500),
    Shape(10, max_tokens=1500),
    Shape(20, max_tokens=1),
    Shape(5, words=60, max_tokens=5),
    Shape(3, words=150, max_tokens=200),
    Shape(2, max_tokens=100, again_s=7.0),
    Shape(10, max_tokens=30, again_s=20.0),
    Shape(4, n=8, leaves=30),
    Shape(10, max_tokens=400, leaves=50),
    Shape(1, n=128, max_tokens=1500, leaves=200),
)


@dataclass
class Tenant:
    """What its clients got: when, and how many tokens."""

    name: str
    shape: Shape
    got: list[tuple[float, int]] = field(default_factory=list)
    refused: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def most(self) -> int:
        """In any 60 s."""
        ends, within, most, start = self.got, 0, 0, 0
        for at, tokens in ends:
            within += tokens
            while ends[start][0] <= at - SPAN_S:
                within -= ends[start][1]
                start += 1
            most = max(most, within)
        return most


def manifests(folder: Path) -> None:
    """A pool with one model, and the tenants with a quota each."""
    head = {"apiVersion": "serving.aegaeon.io/v1alpha1", "metadata": {"name": "quotas"}}
    memory = {"deviceBytes": "96Mi", "slabSize": "256Ki", "hostModelCache": "64Mi", "hostKv": "64Mi"}
    pool = {**head, "kind": "GpuPool", "spec": {"engines": {"replicas": 1}, "memory": memory}}
    tenants = []
    for number in range(len(SHAPES)):
        (folder / f"key-{number}").write_text(key(number))
        quota = {"tokensPerMinute": QUOTA}
        tenants.append({"name": f"t{number}", "keyFile": str(folder / f"key-{number}"), "quota": quota})
    models = [{"name": NAME, "source": {"hostPath": NAME}, "slo": {"ttft": "5s", "tbt": "200ms"}}]
    served = {"gpuPoolRef": {"name": "quotas"}, "models": models, "tenants": tenants}
    (folder / "pool.yaml").write_text(yaml.safe_dump_all([pool, {**head, "kind": "ModelPool", "spec": served}]))


def key(number: int) -> str:
    return f"key-of-tenant-{number:04}-0123456789"


async def burst(session: aiohttp.ClientSession, url: str, tenant: Tenant, key: str, until: float) -> None:
    """One client with this key, until the end."""
    shape = tenant.shape
    body = {
        "model": NAME,
        "messages": [{"role": "user", "content": "word " * shape.words}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "ignore_eos": True,
        "n": shape.n,
        "max_tokens": shape.max_tokens,
    }
    headers = {"Authorization": f"Bearer {key}"}
    while time.monotonic() < until:
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
            wait_s = shape.again_s
            if answer.status == 200:
                await read(answer, tenant, until)
            elif answer.status == 429:
                tenant.refused += 1
                wait_s = float(answer.headers["Retry-After"])
                if wait_s > SPAN_S + 1:
                    tenant.wrong.append(f"Retry-After {wait_s}")
            else:
                tenant.wrong.append(f"{answer.status} {await answer.text()}"[:200])
        await asyncio.sleep(min(wait_s, max(until - time.monotonic(), 0)))


async def read(answer: aiohttp.ClientResponse, tenant: Tenant, until: float) -> None:
    """Count what comes; leave where the shape says, and at the end."""
    count = 0
    async for line in answer.content:
        if not line.startswith(b"data: {"):
            if time.monotonic() > until:
                return
            continue
        event = json.loads(line[6:])
        tokens = tokens_of(event, first=not count)
        if tokens:
            tenant.got.append((time.monotonic(), tokens))
            count += tokens
        if "error" in event:
            tenant.wrong.append(str(event["error"])[:200])
        if count > tenant.shape.leaves or time.monotonic() > until:
            return


def tokens_of(event: dict[str, Any], *, first: bool) -> int:
    """Of an event: those of its choices, and the prompt, which the first event of each choice repeats."""
    outputs = sum(len(choice.get("token_ids") or ()) for choice in event.get("choices", ()))
    return outputs + (len(event.get("prompt_token_ids") or ()) if first else 0)


async def run(lasts_s: float) -> bool:
    tenants = [Tenant(f"t{number}", shape) for number, shape in enumerate(SHAPES)]
    with tempfile.TemporaryDirectory(prefix="aegaeon-bench-") as made:
        folder = Path(made)
        manifests(folder)
        models = Path.home() / ".cache/aegaeon/models"
        make_models(models, print)
        async with (
            Stack(folder, models, free_port()) as stack,
            aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(None)
            ) as session,
        ):
            until = time.monotonic() + lasts_s
            async with asyncio.TaskGroup() as group:
                for number, tenant in enumerate(tenants):
                    for _ in range(tenant.shape.at_once):
                        group.create_task(burst(session, stack.state.url, tenant, key(number), until))
    for tenant in tenants:
        total = sum(tokens for _, tokens in tenant.got)
        print(
            f"{tenant.shape}: most in 60 s {tenant.most}, {total} in all, {tenant.refused} refused {tenant.wrong[:2]}"
        )
    over = [tenant.most - tenant.shape.max_tokens for tenant in tenants]
    least = min(sum(tokens for _, tokens in tenant.got) for tenant in tenants if tenant.shape.leaves > QUOTA)
    return report(
        "quotas",
        [
            Row(f"shapes of burst, each of a tenant with {QUOTA} tokens a minute, for {lasts_s:g} s", len(SHAPES), ""),
            Row(
                "tokens in any 60 s, less max_tokens of a choice: most of any tenant", max(over), "tokens", QUOTA, "<="
            ),
            Row("tokens in any 60 s: most of any tenant", max(tenant.most for tenant in tenants), "tokens"),
            Row("tokens in all: least of any tenant whose clients stay", least, "tokens"),
            Row("answers that are neither right nor 429", sum(len(one.wrong) for one in tenants), "", 0, "<="),
        ],
        short=lasts_s < LASTS_S,
    )


def main() -> int:
    return not asyncio.run(run(float(sys.argv[1]) if sys.argv[1:] else LASTS_S))


if __name__ == "__main__":
    raise SystemExit(main())
