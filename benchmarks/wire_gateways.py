"""Eight gateways' links to one scheduler process, as they are: they submit requests, and note what becomes of each.

No process reads the tokens, so a request is over when its engine says so. Run by benchmarks/wire_load.py:
python -m benchmarks.wire_gateways TARGET LOAD.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from functools import cache, partial
from itertools import cycle

from benchmarks.core import quantile
from benchmarks.wire_load import Arrival, Load, OfGateways
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from aegaeon_gateway.errors import UnavailableError
from aegaeon_gateway.generation.generation import Generation
from aegaeon_gateway.generation.request import Request
from aegaeon_gateway.metrics import Metrics
from aegaeon_gateway.models.catalog import Catalog
from aegaeon_gateway.request.prompt import Prompt
from aegaeon_gateway.rpc.link import SchedulerLink
from aegaeon_gateway.rpc.open_requests import OpenRequests
from aegaeon_gateway.tenancy import Tenants, TenantsFile
from aegaeon_gateway.text.detokenize import Vocabulary
from aegaeon_gateway.workers.wire import Options
from aegaeon_proto.v1.model_pb2 import FINISH_REASON_LENGTH, Limits, ModelSpec, Sampling

_GATEWAYS = 8
_MAX_TOKENS = 1 << 20
_VOCABULARY = Vocabulary(Tokenizer(WordLevel({"a": 0}, unk_token="a")))


@cache
def _prompt(tokens: int) -> Prompt:
    return Prompt.of(range(tokens))


class Submission(Generation):
    """A request whose tokens are not read: it is over when its engine says so."""

    def ended(self, number: int, epoch: int, now: float) -> None:
        self.choices[0].finish = FINISH_REASON_LENGTH
        self._changed()


class Gateways:
    """They submit, and note what becomes of each request: seconds until it was accepted, or that it was refused."""

    def __init__(self, target: str) -> None:
        self.metrics = Metrics()
        self.submitted: dict[str, float] = {}
        self.waits: dict[str, float] = {}
        self.refused: dict[str, float] = {}
        self.lost = 0
        self.attached = [asyncio.Event() for _ in range(_GATEWAYS)]
        self.links = [self._link(target, f"gateway-{number}", event) for number, event in enumerate(self.attached)]

    def _link(self, target: str, name: str, attached: asyncio.Event) -> SchedulerLink:
        return SchedulerLink(
            name=name, targets=(target,), tls=None, sink=f"unix:/nowhere/{name}", hold_s=30.0, open_=OpenRequests(),
            catalog=Catalog(on_change=lambda models: attached.set()), metrics=self.metrics,
            tenants=Tenants(TenantsFile(None), by_scheduler=False),
        )  # fmt: skip

    def begin(self, requests: list[Arrival], start: float) -> None:
        """By gateways in turn, each at its time."""
        loop, links = asyncio.get_running_loop(), cycle(self.links)
        for each in requests:
            loop.call_at(start + each.at, self._submit, each, next(links))  # the loop's clock is the monotonic one

    def _submit(self, arrival: Arrival, link: SchedulerLink) -> None:
        self.submitted[arrival.request] = now = time.monotonic()
        spec = ModelSpec(name=arrival.model, ttft_s=10.0, tbt_s=0.1)
        request = Request(
            arrival.request, spec, _VOCABULARY, Options(n=1, stream=True), Sampling(), [_prompt(arrival.prompt)],
            [Limits(max_tokens=_MAX_TOKENS)], [""], now,
        )  # fmt: skip
        made: list[Generation] = []
        changed = partial(self._changed, made, link)
        made.append(Submission(request, 0, self.metrics.of(arrival.model), lambda: None, changed))
        link.open(made[0])

    def _changed(self, made: list[Generation], link: SchedulerLink) -> None:
        (generation,) = made
        waited_s = time.monotonic() - self.submitted[generation.id]
        if isinstance(generation.error, UnavailableError):
            self.refused[generation.id] = waited_s
        elif generation.accepted:
            self.waits.setdefault(generation.id, waited_s)
        if generation.error is not None or not generation.open_choices:
            self.lost += generation.choices[0].epoch > 1
            link.close(generation)

    def outcome(self, late_s: list[float], share: float) -> OfGateways:
        """`late_s`: of each submission."""
        return OfGateways(
            share=share, waits=self.waits, refused=self.refused, lost=self.lost,
            late_p99_s=quantile(late_s, 0.99), latest_s=max(late_s),
        )  # fmt: skip


async def submit(target: str, load: Load) -> None:
    """Run all gateways; print OfGateways."""
    gateways, requests = Gateways(target), load.requests()
    tasks = [asyncio.create_task(run) for link in gateways.links for run in (link.run(), link.sweep())]
    for attached in gateways.attached:
        await attached.wait()
    print("attached", flush=True)
    start = float(await asyncio.to_thread(sys.stdin.readline))
    gateways.begin(requests, start)
    gc.collect()
    gc.disable()  # it would look at the requests of eight gateways at once, as none does that is a process of its own
    cpu_s = time.process_time()
    await asyncio.sleep(start + load.seconds - time.monotonic())
    share = (time.process_time() - cpu_s) / load.seconds
    late_s = [gateways.submitted[each.request] - start - each.at for each in requests]
    print(json.dumps(gateways.outcome(late_s, share)), flush=True)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(submit(sys.argv[1], Load.from_argument(sys.argv[2])))
