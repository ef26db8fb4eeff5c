"""What a tenant's answers tell of another tenant's prompts: guesses that are right beside guesses that are not.

A victim sends a prompt of TOKENS random tokens; another tenant then sends the same one and another one, in random
order, and looks at `cached_tokens`, at the time until the answer and at `Server-Timing`. In two stacks side by side,
one with `prefixScope: tenant`, one with `pool`, the control: there each of the three must tell.

`python -m benchmarks.prefix_leak [--pairs N] [--seed SEED]`. `--journal FILE --seconds N`: for so long, from where the
file's last sitting ended.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import numpy as np
import yaml
from benchmarks.journal import Journal
from benchmarks.report import Row, report

from aegaeon_cli.demo.stack import Stack, free_port
from aegaeon_cli.models import make_models

PAIRS, TOKENS, WARM_UP = 2000, 2000, 4
NAME, LEAST_ID, MOST_ID = "qwen3", 300, 900
VICTIM, ATTACKER = "victim", "attacker"
SCOPES = ("tenant", "pool")
_PREFILL = re.compile(r"prefill;dur=([0-9.]+)")

Observed = tuple[int, float, float]
"""of an answer: cached_tokens, seconds until it came, milliseconds of prefill"""


def auc(right: Sequence[float], wrong: Sequence[float]) -> float:
    """How often a right guess was quicker than a wrong one: the area under the ROC curve of such a test."""
    ordered = np.sort(wrong)
    below, most = (np.searchsorted(ordered, right, side) for side in ("left", "right"))
    return 1.0 - float((below + most).mean()) / 2 / len(ordered)


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

    async def ask(self, who: str, prompt: list[int]) -> Observed:
        body = {"model": NAME, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        headers = {"Authorization": f"Bearer {key(who)}"}
        begin = time.perf_counter()
        async with self._session.post(f"{self._url}/v1/completions", json=body, headers=headers) as response:
            answer = await response.json()
            seconds = time.perf_counter() - begin
            response.raise_for_status()
            timing = _PREFILL.search(response.headers["Server-Timing"])
        cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return cached, seconds, float(timing.group(1)) if timing else 0.0

    async def pair(self, chance: Random) -> dict[str, Observed]:
        """Of a right and of a wrong guess."""
        secret, other = ([chance.randint(LEAST_ID, MOST_ID) for _ in range(TOKENS)] for _ in range(2))
        await self.ask(VICTIM, secret)
        guesses = [("right", secret), ("wrong", other)]
        chance.shuffle(guesses)
        return {kind: await self.ask(ATTACKER, prompt) for kind, prompt in guesses}


async def sitting(scope: str, journal: Journal, pairs: int, seed: str, until: float) -> None:
    """Pairs that the journal does not have, until it has all or the time is over."""
    first = sum(record["scope"] == scope for record in journal.records)
    with tempfile.TemporaryDirectory(prefix="aegaeon-bench-") as made:
        manifests(Path(made), scope)
        models = Path.home() / ".cache/aegaeon/models"
        async with Stack(Path(made), models, free_port()) as stack, aiohttp.ClientSession() as session:
            asker = Asker(session, stack.state.url)
            for number in range(WARM_UP):
                await asker.pair(Random(f"{seed}/warm-up {first} {number}"))
            for number in range(first, pairs):
                if time.monotonic() > until:
                    return
                journal.add({"scope": scope, **await asker.pair(Random(f"{seed}/{number}"))})


def rows(scope: str, records: list[dict[str, Any]]) -> list[Row]:
    right, wrong = ([record[kind] for record in records] for kind in ("right", "wrong"))
    differ = sum(a[0] != b[0] for a, b in zip(right, wrong, strict=True))
    areas = {
        what: auc([one[at] for one in right], [one[at] for one in wrong])
        for at, what in enumerate(("TTFT", "Server-Timing"), 1)
    }
    if scope == "pool":
        control = [Row(f"pool, the control: ROC AUC of {what}", area, "", 0.9) for what, area in areas.items()]
        return [Row("pool, the control: pairs whose cached_tokens differ", differ, "", len(records)), *control]
    bounds = (("at least", 0.46, ">="), ("at most", 0.54, "<="))
    return [
        Row("tenant: pairs whose cached_tokens differ", differ, "", 0, "<="),
        *(
            Row(f"tenant: ROC AUC of {what}, {which}", area, "", limit, sense)
            for what, area in areas.items()
            for which, limit, sense in bounds
        ),
    ]


async def measure(journal: Journal, pairs: int, seed: str, seconds: float) -> None:
    make_models(Path.home() / ".cache/aegaeon/models", print)
    until = time.monotonic() + seconds
    async with asyncio.TaskGroup() as both:
        for scope in SCOPES:
            both.create_task(sitting(scope, journal, pairs, seed, until))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefix_leak")
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--seed", default="48")
    parser.add_argument("--journal", type=Path, help="a file that pairs are written to")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of this sitting")
    arguments = parser.parse_args()
    journal = Journal(arguments.journal)
    asyncio.run(measure(journal, arguments.pairs, arguments.seed, arguments.seconds))
    by_scope = {scope: [one for one in journal.records if one["scope"] == scope] for scope in SCOPES}
    if any(len(records) < arguments.pairs for records in by_scope.values()):
        print({scope: len(records) for scope, records in by_scope.items()}, "pairs: to be gone on with")
        return 0
    first = Row(f"pairs of guesses of {TOKENS} tokens, seed {arguments.seed}", arguments.pairs, "", PAIRS)
    figures = [first, *(row for scope in SCOPES for row in rows(scope, by_scope[scope]))]
    return not report("prefix_leak", figures, short=arguments.pairs < PAIRS)


if __name__ == "__main__":
    sys.exit(main())
