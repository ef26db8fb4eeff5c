"""Tenants that ask for one model: what a small one gets beside floods, shares by weight, tiers, and what that costs.

One 7B model on one GPU with the costs of h800-policy, objective 10 s and 100 ms (2 s where weights are measured), and
46 models of the paper's mix on four. What the rule changes is measured beside the same arrivals of one tenant.
Run: python -m benchmarks.fair_tenants [PANEL ...] [--seeds 1,2,3]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from benchmarks.goodput import LENGTHS, PROCESSES
from benchmarks.report import Row, read_settings, report

from aegaeon_scheduler.core.domain import ALIKE, Slo, Terms, Tier
from aegaeon_scheduler.core.slo import attainment
from aegaeon_simulator.devices import read_device
from aegaeon_simulator.parallel import processes
from aegaeon_simulator.results.outcome import Outcome
from aegaeon_simulator.run import Run, simulate
from aegaeon_simulator.settings import Settings, Split
from aegaeon_simulator.workload import Lengths, Workload, poisson
from aegaeon_simulator.workload.kinds import QWEN_7B
from aegaeon_simulator.workload.model import in_order

SLO = Slo(10.0, 0.1)
SHORT = Slo(2.0, 0.1)  # with it the engine is saturated soon, before KV fills it
DRAIN_S = 300.0
SECONDS = 60.0
CALM_MODELS, CALM_GPUS = 46, 4
SHARES = {"a": 5, "b": 3, "c": 2, "d": 1}


@dataclass(frozen=True, slots=True)
class Asks:
    """A tenant of the one model: requests per second, from when until when."""

    tenant: str
    rate: float
    begin_s: float = 0.0
    end_s: float = SECONDS
    terms: Terms = ALIKE


def one_model(seed: int, *tenants: Asks) -> Workload:
    """Workload of these tenants on a single model."""
    arrivals = [
        replace(arrival, t_s=asks.begin_s + arrival.t_s, tenant=asks.tenant, terms=asks.terms)
        for number, asks in enumerate(tenants)
        for arrival in poisson(
            Lengths.read(LENGTHS),
            models=1,
            rate=asks.rate,
            duration_s=asks.end_s - asks.begin_s,
            seed=1000 * number + seed,
        ).arrivals
    ]
    return in_order([QWEN_7B], arrivals).capped(4000, 2000)


def of_one_tenant(workload: Workload) -> Workload:
    """The same requests, of clients that are all one tenant."""
    return replace(workload, arrivals=tuple(replace(a, tenant="", terms=ALIKE) for a in workload.arrivals))


@dataclass(frozen=True, slots=True)
class Played:
    """A run and what was asked in it."""

    workload: Workload
    outcome: Outcome

    @staticmethod
    def of(workload: Workload, gpus: int, seed: int, slo: Slo = SLO) -> Played:
        settings = Settings("slack", Split(unified=gpus), slo, DRAIN_S)
        return Played(workload, simulate(Run(settings, workload, read_device("h800-policy"), seed)))

    def on_time(self, tenant: str | None = None) -> float:
        """Share of the tokens, of this tenant or of all."""
        pairs = zip(self.workload.arrivals, self.outcome.requests, strict=True)
        kept = (served for arrival, served in pairs if tenant in (None, arrival.tenant))
        return attainment((request.times, SLO, request.length) for request in kept).token

    def tokens(self, tenant: str, begin_s: float, end_s: float) -> int:
        """Number of tokens that a tenant got between two times."""
        pairs = zip(self.workload.arrivals, self.outcome.requests, strict=True)
        kept = (served for arrival, served in pairs if arrival.tenant == tenant)
        return sum(begin_s <= r.arrival_s + at < end_s for r in kept for at in r.times)


Measured = dict[str, float]


def flood(rate: float, seed: int) -> Measured:
    """A tenant with 3 % of what the engine carries, beside one that asks for more than all of it."""
    workload = one_model(seed, Asks("small", 0.5), Asks("big", rate, 10.0, 50.0))
    distinguished, alike = Played.of(workload, 1, seed), Played.of(of_one_tenant(workload), 1, seed)
    before = Played(workload, alike.outcome)
    return {
        "small": distinguished.on_time("small"),
        "small, one tenant": before.on_time("small"),
        "all": distinguished.on_time(),
        "all, one tenant": before.on_time(),
    }


def calm(seed: int) -> Measured:
    """Requests of 46 models are of four tenants by chance, none of which is greedy."""
    workload = poisson(Lengths.read(LENGTHS), models=CALM_MODELS, rate=0.1, duration_s=SECONDS + 20.0, seed=seed)
    draws = np.random.default_rng(seed).choice(
        list(SHARES), len(workload.arrivals), p=np.array(list(SHARES.values())) / 11
    )
    tagged = replace(
        workload, arrivals=tuple(replace(a, tenant=str(t)) for a, t in zip(workload.arrivals, draws, strict=True))
    )
    distinguished, alike = Played.of(tagged, CALM_GPUS, seed), Played.of(workload, CALM_GPUS, seed)
    pairs = zip(distinguished.outcome.requests, alike.outcome.requests, strict=True)
    moved = sum(alone.times != other.times for other, alone in pairs)
    return {"all": distinguished.on_time(), "all, one tenant": alike.on_time(), "moved": moved}


def weights(seed: int) -> Measured:
    """Two tenants that each ask for more than the engine carries, of weights 3 and 1."""
    workload = one_model(seed, Asks("heavy", 20.0, terms=Terms(weight=3)), Asks("light", 20.0))
    played = Played.of(workload, 1, seed, SHORT)
    heavy, light = (played.tokens(tenant, 10.0, 50.0) for tenant in ("heavy", "light"))
    return {"ratio": heavy / max(light, 1)}


def tiers(seed: int) -> Measured:
    """An interactive tenant beside one of tier batch that asks five times as much, together more than fits."""
    workload = one_model(
        seed, Asks("chat", 5.0, terms=Terms(Tier.INTERACTIVE)), Asks("night", 25.0, terms=Terms(Tier.BATCH))
    )
    played = Played.of(workload, 1, seed)
    return {"interactive": played.on_time("chat"), "batch": played.on_time("night"), "all": played.on_time()}


def _flood_rows(rate: float, means: Measured) -> Iterator[Row]:
    name = f"small tenant beside a flood of {rate:g}/s"
    yield Row(f"{name}: tokens on time", means["small"], "share", 0.90)
    yield Row(f"{name}: as one tenant", means["small, one tenant"], "share")
    cost = 100.0 * (means["all, one tenant"] - means["all"])
    yield Row(f"{name}: cost over all tokens", cost, "points", 1.0, "<=")
    yield Row(f"{name}: all tokens", means["all"], "share")


def _calm_rows(means: Measured) -> Iterator[Row]:
    name = f"{CALM_MODELS} models, tenants 5:3:2:1, none greedy"
    yield Row(f"{name}: all tokens", means["all"], "share")
    yield Row(f"{name}: requests served otherwise than of one tenant", means["moved"], "requests", 0.0, "<=")


def _weight_rows(means: Measured) -> Iterator[Row]:
    off = abs(means["ratio"] / 3.0 - 1.0)
    yield Row("weights 3:1, both flood: tokens of one over the other's", means["ratio"], "")
    yield Row("weights 3:1, both flood: off by", 100.0 * off, "%", 5.0, "<=")


def _tier_rows(means: Measured) -> Iterator[Row]:
    yield Row("interactive beside batch x 5: tokens on time", means["interactive"], "share", 0.98)
    yield Row("interactive beside batch x 5: of batch", means["batch"], "share")


PANELS: dict[str, tuple[Callable[[int], Measured], Callable[[Measured], Iterator[Row]]]] = {
    "flood-24": (lambda seed: flood(24.0, seed), lambda means: _flood_rows(24.0, means)),
    "flood-36": (lambda seed: flood(36.0, seed), lambda means: _flood_rows(36.0, means)),
    "calm": (calm, _calm_rows),
    "weights": (weights, _weight_rows),
    "tiers": (tiers, _tier_rows),
}


def measure(panel: str, seed: int) -> Measured:
    """One run of a panel."""
    return PANELS[panel][0](seed)


def main() -> int:
    """Every panel and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("panels", nargs="*", default=list(PANELS), metavar="PANEL")
    parser.add_argument("--seeds", default="776,16,4")  # digits of the hash of the commit that was measured first
    arguments = read_settings(parser)
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    figures: list[Row] = []
    with processes(PROCESSES) as pool:
        runs = {panel: [pool.submit(measure, panel, seed) for seed in seeds] for panel in arguments.panels}
        for panel, futures in runs.items():
            measured = [future.result() for future in futures]
            print(panel, *({name: round(value, 4) for name, value in each.items()} for each in measured), flush=True)
            means = {name: fmean(each[name] for each in measured) for name in measured[0]}
            figures += PANELS[panel][1](means)
    return 0 if report("fair_tenants", figures, arguments.short) else 1


if __name__ == "__main__":
    sys.exit(main())
