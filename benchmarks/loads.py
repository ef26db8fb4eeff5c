"""Loads on a few GPUs at which policies differ: as many requests to an engine as at the larger panels, in seconds of a
processor instead of minutes. Each is a run of a seed, and the parts of its requests that are looked at by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from benchmarks.goodput import FIRST_S, LENGTHS, NVME, POINTS

from aegaeon_scheduler.core.domain import ALIKE, Slo, Terms, Tier
from aegaeon_simulator.devices import Device, Kind, More, read_device
from aegaeon_simulator.figures.points import Point as Drawn
from aegaeon_simulator.figures.points import Trace
from aegaeon_simulator.figures.points import run_of as drawn_run
from aegaeon_simulator.results.outcome import Served
from aegaeon_simulator.run import Run
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Arrival, Lengths, Workload, poisson
from aegaeon_simulator.workload.kinds import LLAMA_13B, QWEN_7B, paper_kind
from aegaeon_simulator.workload.model import in_order

GPUS = 4
SECONDS = 60.0  # of arrivals
DRAIN_S = 300.0
SLO = Slo(10.0, 0.1)
EMBEDDER = "embedder-1b"
_GB = 10**9
_AT_ONCE_S = 0.1  # from arrival to a refusal
Chooses = Callable[[Served], bool]


@dataclass(frozen=True, slots=True)
class Load:
    """A run, and parts of its requests by name."""

    run: Run
    parts: Mapping[str, Chooses] = field(default_factory=dict)


# -- pieces ----------------------------------------------------------------------------------------------------------


def device(first_s: float = FIRST_S, **changes: Any) -> Device:
    """GPU of the headline: a model's first step on an engine is charged."""
    return replace(read_device("h800-policy"), first_s=first_s, **changes)


def arrivals(models: int, rate: float, seed: int, seconds: float = SECONDS, first: int = 0) -> list[Arrival]:
    """Poisson arrivals of models that are numbered from `first`."""
    drawn = poisson(Lengths.read(LENGTHS), models=models, rate=rate, duration_s=seconds, seed=seed)
    return [replace(a, model=a.model + first) for a in drawn.arrivals]


def capped(requests: Iterable[Arrival]) -> list[Arrival]:
    """Lengths as models' contexts have them."""
    return [
        replace(a, input_tokens=min(a.input_tokens, 4000), output_tokens=min(a.output_tokens, 2000)) for a in requests
    ]


def settings(slo: Slo = SLO, slos: tuple[Slo, ...] = (), gpus: int = GPUS) -> Settings:
    """Policy slack on GPUs without roles."""
    return Settings("slack", Split(unified=gpus), slo, DRAIN_S, slos=slos)


def mixed_kinds(models: int) -> tuple[str, ...]:
    """Sizes of the paper's mix."""
    return tuple(paper_kind(m) for m in range(models))


# -- loads of models that are alike ----------------------------------------------------------------------------------


def headline(name: str, seed: int) -> Load:
    """A point of benchmarks.goodput on a quarter of its GPUs."""
    point = POINTS[name]
    models = round(point.models * GPUS / 16 * (1.07 if name == "0.5" else 1.0))
    work = in_order(mixed_kinds(models), arrivals(models, point.rate, seed))
    return Load(Run(settings(point.slo), work, device(), seed))


def finite_host(seed: int) -> Load:
    """As many models as two thirds of a node's memory and the devices hold; the others come from disk."""
    work = in_order(mixed_kinds(36), arrivals(36, 0.1, seed))
    host = device(host_cache_bytes=256 * _GB, disk_bytes_per_s=NVME)
    return Load(Run(settings(), work, host, seed))


def little_memory(seed: int) -> Load:
    """Large models on engines of 34 GB, with 8 GB of each for KV on the host."""
    work = in_order((LLAMA_13B,) * 12, arrivals(12, 0.5, seed, 60.0))
    small = device(model_bytes=34 * _GB, host_kv_bytes=8 * _GB)
    return Load(Run(settings(), work, small, seed))


def makes(seed: int) -> Load:
    """GPUs of two makes, models of 7B."""
    work = in_order((QWEN_7B,) * 40, arrivals(40, 0.1, seed))
    also = (More(4, replace(read_device("a10"), first_s=FIRST_S)),)
    return Load(Run(settings(gpus=2), work, device(), seed, also))


def slow_link(seed: int) -> Load:
    """Eight models of 7B on four small GPUs, for each of which a change takes four seconds of its link."""
    small = replace(read_device("a10"), first_s=FIRST_S)
    kinds = {
        name: replace(kind, latency=replace(kind.latency, load_bytes_per_s=4e9, kv_bytes_per_s=4e9))
        for name, kind in small.kinds.items()
    }
    work = in_order((QWEN_7B,) * 8, arrivals(8, 0.1, seed, 100.0))
    return Load(Run(settings(), work, replace(small, kinds=kinds), seed))


def roles(seed: int) -> Load:
    """One GPU prefills, three decode."""
    work = in_order(mixed_kinds(24), arrivals(24, 0.1, seed))
    return Load(Run(replace(settings(), split=Split(prefill=1, decode=3)), work, device(), seed))


def admitted(models: int, rate: float, scale: float, seed: int) -> Load:
    """More than fits, with admission; `admitted` are requests that were not refused at once."""
    work = in_order(mixed_kinds(models), arrivals(models, rate, seed, 60.0))
    chosen = replace(settings(Slo(SLO.ttft_s * scale, SLO.tbt_s * scale)), admission="feasible")
    parts = {"admitted": lambda r: r.refused_s is None or r.refused_s > _AT_ONCE_S}
    return Load(Run(chosen, work, device(), seed), parts)


# -- loads of models that differ ---------------------------------------------------------------------------------------


def objectives(models: int, loose: Slo, strict: Slo, seed: int, seconds: float = SECONDS) -> Load:
    """Every other model has the loose objective."""
    slos = tuple(loose if m % 2 else strict for m in range(models))
    work = in_order(mixed_kinds(models), arrivals(models, 0.12, seed, seconds))
    parts = {"loose": _models(range(1, models, 2)), "strict": _models(range(0, models, 2))}
    return Load(Run(settings(strict, slos), work, device(), seed), parts)


def zipf(seed: int, models: int = 150, rate: float = 4.5, seconds: float = 90.0, gpus: int = GPUS) -> Load:
    """Demand of a catalog: the k-th model is asked for 1/k as often as the first. Popular ones are of all sizes."""
    random = np.random.default_rng([seed, 1])
    rank = random.permutation(models)
    share = 1.0 / (rank + 1.0)
    rates = rate * share / share.sum()
    lengths = Lengths.read(LENGTHS)
    requests = [a for m in range(models) for a in _poisson(lengths, m, float(rates[m]), 0.0, seconds, seed)]
    parts = {
        "top ten": _models(np.flatnonzero(rank < 10).tolist()),
        "last half": _models(np.flatnonzero(rank >= models // 2).tolist()),
    }
    return Load(Run(settings(gpus=gpus), in_order(mixed_kinds(models), capped(requests)), device(), seed), parts)


def tiers(seed: int) -> Load:
    """Overload, a third of the models of each tier."""
    models, order = 54, (Tier.INTERACTIVE, Tier.STANDARD, Tier.BATCH)
    terms = tuple(Terms(order[m % 3]) for m in range(models))
    work = replace(in_order(mixed_kinds(models), arrivals(models, 0.12, seed)), terms=terms)
    parts = {tier.value: _models(range(at, models, 3)) for at, tier in enumerate(order)}
    return Load(Run(settings(), work, device(), seed), parts)


def weights(seed: int) -> Load:
    """Overload, every third model has three times the weight."""
    models = 54
    terms = tuple(Terms(weight=3 if m % 3 == 0 else 1) for m in range(models))
    work = replace(in_order(mixed_kinds(models), arrivals(models, 0.12, seed)), terms=terms)
    parts = {"weight 3": _models(range(0, models, 3)), "weight 1": lambda r: r.model % 3 != 0}
    return Load(Run(settings(), work, device(), seed), parts)


def greed(seed: int, gpus: int = GPUS) -> Load:
    """Five models for each GPU, and one whose long prompts alone would keep most of the GPUs busy."""
    models = 5 * gpus
    requests = [*_mooncake(gpus / 4, SECONDS), *arrivals(models, 0.1, seed, first=1)]
    work = in_order((QWEN_7B, *mixed_kinds(models)), requests)
    parts = {"hot": _models([0]), "others": lambda r: r.model > 0}
    return Load(Run(settings(gpus=gpus), work, device(), seed), parts)


def long_prompts(seed: int) -> Load:
    """A model whose prompts are those of Mooncake's trace, not cut, and fill the GPUs."""
    return Load(Run(settings(), Workload((QWEN_7B,), _mooncake(2.0, 60.0)), device(), seed))


def _mooncake(speedup: float, seconds: float) -> tuple[Arrival, ...]:
    trace = Trace(
        "mooncake_conversation.csv.gz", speedup=speedup, window_s=seconds, single=True, most_input=1 << 20,
        most_output=2000,
    )  # fmt: skip
    return drawn_run(Drawn("slack", "h800-policy", Split(unified=GPUS), SLO, trace), LENGTHS.parent).workload.arrivals


def long_beside_chat(seed: int) -> Load:
    """Prompts of 100,000 tokens of tier batch, two at once, beside an interactive model; one engine."""
    chat = arrivals(1, 1.0, seed, 120.0)
    long = [Arrival(10.0 + 15.0 * k, 1 + i, 100_000, 50) for k in range(7) for i in range(2)]
    terms = (Terms(Tier.INTERACTIVE), Terms(Tier.BATCH), Terms(Tier.BATCH))
    work = replace(in_order((QWEN_7B,) * 3, [*chat, *long]), terms=terms)
    parts = {"chat": _models([0]), "long": lambda r: r.model > 0}
    return Load(Run(settings(gpus=1), work, device(), seed), parts)


def deferred(seed: int) -> Load:
    """Requests of batches, due a minute later, as many as five times the others."""
    online = arrivals(24, 0.1, seed)
    batch = [replace(a, defer_s=60.0) for a in arrivals(24, 0.5, seed + 1)]
    work = in_order(mixed_kinds(24), [*online, *batch])
    parts = {"online": lambda r: not r.defer_s, "batch": lambda r: r.defer_s > 0}
    return Load(Run(settings(), work, device(), seed), parts)


def crowd(seed: int) -> Load:
    """Thirty models, and one more that all ask for at once for 20 s."""
    rush = _poisson(Lengths.read(LENGTHS), 30, 12.0, 30.0, 50.0, seed)
    work = in_order((*mixed_kinds(30), QWEN_7B), capped([*arrivals(30, 0.1, seed), *rush]))
    return Load(Run(settings(), work, device(), seed), {"crowd": _models([30]), "others": lambda r: r.model < 30})


def with_embedder(gpu: Device, task: str) -> Device:
    """A device that has constants of an embedder of 1B, which are assumed: a floor of 8 ms, 5 us a token."""
    like = gpu.kinds[QWEN_7B]
    pace = replace(like.latency, a=5e-3, b=3e-8, c=3e-5, p0=4e-3, p1=5e-6, p2=1e-10, floor=8e-3)
    kind = Kind(EMBEDDER, 3_100_000_000, 28_672, pace, task=task)
    return replace(gpu, kinds={**gpu.kinds, EMBEDDER: kind})


def embeddings(seed: int, rate: float = 120.0, seconds: float = SECONDS, chat: int = 10, task: str = "embed") -> Load:
    """Texts of 600 tokens for two embedders, beside models that chat; `task` is empty where a policy knows none."""
    texts: list[Arrival] = []
    for m in (chat, chat + 1):
        random = np.random.default_rng([seed, m, 2])
        t_s = float(random.exponential(2 / rate))
        while t_s < seconds:
            texts.append(Arrival(t_s, m, 600, 1))
            t_s += float(random.exponential(2 / rate))
    slos = (SLO,) * chat + (Slo(0.5, 0.1),) * 2
    work = in_order((*mixed_kinds(chat), EMBEDDER, EMBEDDER), [*arrivals(chat, 0.1, seed, seconds), *texts])
    parts = {"chat": lambda r: r.model < chat, "texts": lambda r: r.model >= chat}
    return Load(Run(settings(SLO, slos), work, with_embedder(device(), task), seed), parts)


def first_uses(seed: int, first_s: float = 2.0, seconds: float = 100.0) -> Load:
    """The headline's models while nothing has run on any engine: a model's first step on each takes long."""
    work = in_order(mixed_kinds(46), arrivals(46, 0.1, seed, seconds))
    parts = {"first 100 s": lambda r: r.arrival_s < 100.0, "later": lambda r: r.arrival_s >= 100.0}
    return Load(Run(settings(), work, device(first_s), seed), parts)


def groups_that_wake(seed: int, models: int = 60, seconds: float = 120.0) -> Load:
    """Teams of three to eight models that are asked together for a while, and then others.

    Every 15 s three teams are drawn; each of their models has 0.5 requests a second until the next draw.
    """
    random = np.random.default_rng([seed, 3])
    lengths, requests = Lengths.read(LENGTHS), list[Arrival]()
    for turn in range(int(seconds // 15)):
        for team in range(3):
            members = random.choice(models, size=int(random.integers(3, 9)), replace=False).tolist()
            for m in members:
                begin = 15.0 * turn
                requests += _poisson(lengths, m, 0.5, begin, begin + 15.0, seed * 1000 + turn * 10 + team)
    work = in_order(mixed_kinds(models), capped(requests))
    return Load(Run(settings(), work, device(), seed))


def flood(rate: float, seed: int) -> Load:
    """A model with an engine of its own: a tenant asks for it every other second, a second one at `rate` for 40 s."""
    lengths = Lengths.read(LENGTHS)
    small = [replace(a, tenant="small") for a in _poisson(lengths, 0, 0.5, 0.0, 60.0, seed)]
    big = [replace(a, tenant="big") for a in _poisson(lengths, 0, rate, 10.0, 50.0, seed + 1)]
    work = in_order((QWEN_7B,), capped([*small, *big]))
    parts = {"small": lambda r: r.tenant == "small", "big": lambda r: r.tenant == "big"}
    return Load(Run(settings(gpus=1), work, device(), seed), parts)


def tiered_tenants(seed: int) -> Load:
    """A model with an engine of its own: an interactive tenant, and one of tier batch that asks five times as often."""
    chat = _requests_of("interactive", 5.0, seed, Terms(Tier.INTERACTIVE))
    night = _requests_of("batch", 25.0, seed + 1, Terms(Tier.BATCH))
    return Load(Run(settings(gpus=1), in_order((QWEN_7B,), [*chat, *night]), device(), seed), _TIERED)


def _requests_of(tenant: str, rate: float, seed: int, terms: Terms = ALIKE) -> list[Arrival]:
    drawn = capped(_poisson(Lengths.read(LENGTHS), 0, rate, 0.0, SECONDS, seed))
    return [replace(a, tenant=tenant, terms=terms) for a in drawn]


_TIERED: Mapping[str, Chooses] = {
    "interactive": lambda r: r.tenant == "interactive",
    "batch": lambda r: r.tenant == "batch",
}


def modest_tenants(seed: int) -> Load:
    """The headline's models, whose requests are of four tenants; none of them asks for more than fits."""
    draws = np.random.default_rng([seed, 4])
    names = draws.choice(list("abcd"), size=100_000, p=[0.45, 0.27, 0.18, 0.1])
    requests = [replace(a, tenant=str(name)) for a, name in zip(arrivals(46, 0.1, seed), names, strict=False)]
    parts = {name: (lambda r, name=name: r.tenant == name) for name in "abcd"}
    return Load(Run(settings(), in_order(mixed_kinds(46), requests), device(), seed), parts)


def _poisson(lengths: Lengths, model: int, rate: float, begin: float, end: float, seed: int) -> list[Arrival]:
    """Arrivals of one model from a stream of its own."""
    random = np.random.default_rng([seed, model])
    drawn: list[Arrival] = []
    t_s = begin + float(random.exponential(1 / rate))
    while t_s < end:
        prompt, answer = lengths.pairs[int(random.integers(len(lengths.pairs)))]
        drawn.append(Arrival(t_s, model, prompt, answer))
        t_s += float(random.exponential(1 / rate))
    return drawn


def _models(numbers: Iterable[int]) -> Chooses:
    chosen = frozenset(numbers)
    return lambda request: request.model in chosen


LOADS: dict[str, Callable[[int], Load]] = {
    "0.1": partial(headline, "0.1"),
    "0.5": partial(headline, "0.5"),
    "x0.5": partial(headline, "x0.5"),
    "x0.3": partial(headline, "x0.3"),
    "x0.2": partial(headline, "x0.2"),
    "60/8 s": partial(objectives, 56, Slo(60.0, 0.1), Slo(8.0, 0.1)),
    "30/2 s": partial(objectives, 44, Slo(30.0, 0.2), Slo(2.0, 0.05)),
    "zipf": zipf,
    "tiers": tiers,
    "weights": weights,
    "greed": greed,
    "greed x16": partial(greed, gpus=16),
    "long": long_prompts,
    "100k": long_beside_chat,
    "crowd": crowd,
    "makes": makes,
    "host": finite_host,
    "memory": little_memory,
    "slow link": slow_link,
    "roles": roles,
    "admission": partial(admitted, 34, 0.5, 1.0),
    "admission x0.2": partial(admitted, 22, 0.1, 0.2),
    "admission 0.1": partial(admitted, 56, 0.1, 1.0),
    "deferred": deferred,
    "embeddings": embeddings,
    "first uses": first_uses,
    "teams": groups_that_wake,
}
