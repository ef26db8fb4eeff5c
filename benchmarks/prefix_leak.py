"""What a tenant's answers tell of another tenant's prompts: guesses that are right beside guesses that are not.

A victim sends a prompt of 1,900 random tokens; another tenant then sends the same one and another one, in random order,
and looks at `cached_tokens`, at the time until the answer and at `Server-Timing`. Once with `prefixScope: tenant`, once
with `pool`, the control: there each of the three must tell. `python -m benchmarks.prefix_leak [PAIRS] [SEED]`.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import yaml
from benchmarks.report import Row, report

from aegaeon_cli.demo.stack import Stack, free_port
from aegaeon_cli.models import make_models

PAIRS, TOKENS, WARM_UP = 2000, 1900, 4
NAME, LEAST_ID, MOST_ID = "qwen3", 300, 900
VICTIM, ATTACKER = "victim", "attacker"
_PREFILL = re.compile(r"prefill;dur=([0-9.]+)")


@dataclass
class Observed:
    """Of guesses of one kind: what each answer reports."""

    cached: list[int] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    prefill_ms: list[float] = field(default_factory=list)


def auc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """How often a right guess was quicker than a wrong one: the area under the ROC curve of such a test."""
    wins = sum((r < w) + 0.5 * (r == w) for r in right for w in wrong)
    return wins / (len(right) * len(wrong))


def key(who: str) -> str:
    return f"{who}-key-0123456789abcdef"


def manifests(folder: Path, scope: str) -> None:
    """A pool with one engine and one model, and two tenants."""
    head = {"apiVersion": "serving.aegaeon.io/v1alpha1", "metadata": {"name": "leak"}}
    memory = {"deviceBytes": "96Mi", "slabSize": "256Ki", "hostModelCache": "64Mi", "hostKv": "64Mi"}
    spec = {"engines": {"replicas": 1}, "memory": {**memory, "prefixScope": scope}}
    tenants = []
    for who in (VICTIM, ATTACKER):
        (folder / who).write_text(key(who))
        tenants.append({"name": who, "keyFile": str(folder / who)})
    models = [{"name": NAME, "source": {"hostPath": NAME}, "slo": {"ttft": "5s", "tbt": "200ms"}}]
    served = {"gpuPoolRef": {"name": "leak"}, "models": models, "tenants": tenants}
    pools: list[dict[str, Any]] = [
        {**head, "kind": "GpuPool", "spec": spec},
        {**head, "kind": "ModelPool", "spec": served},
    ]
    (folder / "pool.yaml").write_text(yaml.safe_dump_all(pools))


class Asker:
    """Asks one request after the other."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def ask(self, who: str, prompt: list[int], observed: Observed | None = None) -> None:
        body = {"model": NAME, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        headers = {"Authorization": f"Bearer {key(who)}"}
        begin = time.perf_counter()
        async with self._session.post(f"{self._url}/v1/completions", json=body, headers=headers) as answer:
            found = await answer.json()
            seconds = time.perf_counter() - begin
            answer.raise_for_status()
            timing = _PREFILL.search(answer.headers["Server-Timing"])
        if observed is not None:
            observed.cached.append(found["usage"]["prompt_tokens_details"]["cached_tokens"])
            observed.ttft_s.append(seconds)
            observed.prefill_ms.append(float(timing.group(1)) if timing else 0.0)


async def guesses(scope: str, pairs: int, seed: str) -> tuple[Observed, Observed]:
    """Of right and of wrong guesses."""
    chance, right, wrong = Random(seed), Observed(), Observed()
    with tempfile.TemporaryDirectory(prefix="aegaeon-bench-") as made:
        manifests(Path(made), scope)
        models = Path.home() / ".cache/aegaeon/models"
        make_models(models, print)
        async with Stack(Path(made), models, free_port()) as stack, aiohttp.ClientSession() as session:
            asker = Asker(session, stack.state.url)
            for number in range(WARM_UP + pairs):
                secret, other = ([chance.randint(LEAST_ID, MOST_ID) for _ in range(TOKENS)] for _ in range(2))
                await asker.ask(VICTIM, secret)
                counted = number >= WARM_UP
                tries = [(secret, right if counted else None), (other, wrong if counted else None)]
                chance.shuffle(tries)
                for prompt, observed in tries:
                    await asker.ask(ATTACKER, prompt, observed)
    return right, wrong


async def run(pairs: int, seed: str) -> bool:
    rows = [Row(f"pairs of guesses of {TOKENS} tokens, seed {seed}", pairs, "")]
    for scope in ("tenant", "pool"):
        right, wrong = await guesses(scope, pairs, seed)
        differ = sum(a != b for a, b in zip(right.cached, wrong.cached, strict=True))
        areas = {"TTFT": auc(right.ttft_s, wrong.ttft_s), "Server-Timing": auc(right.prefill_ms, wrong.prefill_ms)}
        if scope == "tenant":
            rows.append(Row("tenant: pairs whose cached_tokens differ", differ, "", 0, "<="))
            rows += [
                row
                for what, area in areas.items()
                for row in (
                    Row(f"tenant: ROC AUC of {what}, at least", area, "", 0.46),
                    Row(f"tenant: ROC AUC of {what}, at most", area, "", 0.54, "<="),
                )
            ]
        else:
            rows.append(Row("pool, the control: pairs whose cached_tokens differ", differ, "", pairs))
            rows += [Row(f"pool, the control: ROC AUC of {what}", area, "", 0.9) for what, area in areas.items()]
    return report("prefix_leak", rows)


def main() -> int:
    asked = sys.argv[1:]
    return not asyncio.run(run(int(asked[0]) if asked else PAIRS, asked[1] if asked[1:] else "48"))


if __name__ == "__main__":
    raise SystemExit(main())
