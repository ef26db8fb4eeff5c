"""A scene: a few requests to a small pool, and what the core makes of them. Its transcript shows one rule of
docs/policy.md, and changes without it (test_rules.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scheduler_core.transcript import Transcript
from small_world import small_world

from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig, SlackSettings
from aegaeon_scheduler.core.domain import ALIKE, ModelName, Role, Terms
from aegaeon_simulator.pool.clients import Clients
from aegaeon_simulator.pool.world import World
from aegaeon_simulator.workload import Arrival

ONE_MODEL, TWO_MODELS = 130, 250
"""slabs of an engine with room for so many models and some KV"""
FAST = {"load_bytes_per_s": (100 << 20) / 0.2, "kv_bytes_per_s": 4e9}


END_S = 30.0
"""by which all are answered in most scenes"""


def slack(**fields: Any) -> SlackSettings:
    """Settings of the policy. What shows a rule replaces them here."""
    return SlackSettings(**fields)


@dataclass(frozen=True, slots=True)
class Request:
    """`prompt` and `answer` in tokens, `at` in seconds; `arrived`: when a gateway got it, at `at` by default."""

    name: str
    model: int
    prompt: int = 40
    answer: int = 4
    at: float = 0.1
    arrived: float | None = None
    tenant: str = ""
    terms: Terms = ALIKE
    defer_s: float = 0.0
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Scene:
    """`title` says what happens and why. Without `engines` more than one, all is on e0. The transcript shows what is
    between `since` and `until`. `step`: seconds by which the latency of steps differs from the usual.

    `policy` are settings of the policy, `core` those of the core, `world` of small_world. `talks` are requests of
    conversations; from `late` on the scheduler is late with reports.
    """

    title: str
    requests: tuple[Request, ...] = ()
    engines: int = 1
    slabs: int = TWO_MODELS
    models: int = 2
    policy: Mapping[str, Any] = field(default_factory=dict)
    core: Mapping[str, Any] = field(default_factory=dict)
    world: Mapping[str, Any] = field(default_factory=dict)
    step: Mapping[str, float] = field(default_factory=dict)
    talks: tuple[Arrival, ...] = ()
    late: float | None = None
    since: float = 0.0
    until: float = END_S

    def play(self, transcript: Transcript) -> World:
        """Runs it until `until`."""
        latency = LatencyConstants(**FAST, **self.step)
        core = {"refine": False, **self.core}
        config = SchedulerConfig(policy=slack(**self.policy), latency=latency, **core)
        options = {"slabs": self.slabs, "models": self.models, "latency": latency, "config": config, **self.world}

        def observe(now: float, event: ev.Event, commands: list[Any]) -> None:
            if self.since <= now <= self.until:
                transcript.observe(now, event, commands)

        world = small_world([Role.UNIFIED] * self.engines, observe=observe, **options)
        for request in self.requests:
            _send(world, request)
        if self.talks:
            Clients(world, [ModelName(f"m{i}") for i in range(self.models)], self.talks)
        if self.late is not None:
            world.clock.at(self.late, lambda: world.feed(ev.TurnsStretched(4)))
        world.run(until=self.until)
        return world


def _send(world: World, request: Request) -> None:
    client = world.request(request.name, ModelName(f"m{request.model}"), request.prompt, request.answer, request.at)
    client.tenant, client.terms, client.defer_s = request.tenant, request.terms, request.defer_s
    client.priority = request.priority
    if request.arrived is not None:
        client.arrival = request.arrived
