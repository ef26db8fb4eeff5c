"""A small pool of equal models for tests of the core: sizes in slabs, seconds as on a small GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil
from types import MappingProxyType
from typing import Any

import pytest

from aegaeon_scheduler import COMPILED
from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import LatencyConstants, SchedulerConfig
from aegaeon_scheduler.core.domain import FailureKind, Footprint, InstanceId, KvShape, ModelName, Role, Slo, Terms
from aegaeon_simulator.engine.spec import EngineSpec, Served
from aegaeon_simulator.pool.client import Client
from aegaeon_simulator.pool.world import World

interpreted = pytest.mark.skipif(COMPILED, reason="replaces parts of the core, which compiled code calls directly")

SLAB_BYTES = 1 << 20
BLOCK_TOKENS = 16


def examples(count: int) -> int:
    """How many random ones a test tries: all with the compiled core (make test-core), a third with the slow one."""
    return count if COMPILED else ceil(count / 3)


def served(
    weight_slabs: int = 100,
    block_bytes: int = SLAB_BYTES // 8,
    shape: str = "shape",
    content: str = "",
    pools: bool = False,
    latency: LatencyConstants | None = None,
) -> Served:
    """A model that loads in 0.2 s and decodes a step in 10 ms, unless `latency` says otherwise; a block holds 16
    tokens.
    """
    weight_bytes = weight_slabs * SLAB_BYTES
    footprint = Footprint(
        weight_bytes, weight_slabs, KvShape(shape), block_bytes, BLOCK_TOKENS, 4096, content, "embed" if pools else ""
    )
    return Served(footprint, latency or LatencyConstants(load_bytes_per_s=weight_bytes / 0.2, kv_bytes_per_s=4e9))


def _models(
    count: int,
    block_bytes: int,
    shapes: int,
    contents: int,
    pooling: int,
    ttfts: Sequence[float],
    latency: LatencyConstants | None,
) -> dict[ModelName, tuple[Served, Slo]]:
    """See small_world."""
    pool = {}
    for i in range(count):
        content = f"content{i % contents}" if contents else ""
        model = served(100, block_bytes, f"shape{i % shapes}", content, pools=i < pooling, latency=latency)
        pool[ModelName(f"m{i}")] = (model, Slo(ttfts[i % len(ttfts)], 0.1))
    return pool


def small_world(
    roles: Sequence[Role],
    models: int = 4,
    slabs: int = 250,
    host_slabs: int = 400,
    max_batch: int = 16,
    shapes: int = 1,
    odd_blocks: bool = False,
    contents: int = 0,
    nodes: int = 1,
    host_models: int = 0,
    delay_s: float = 0.0005,
    config: SchedulerConfig | None = None,
    fault: Callable[[cmd.Send], FailureKind | None] = lambda send: None,
    observe: Callable[[float, ev.Event, list[cmd.Command]], None] = lambda now, event, commands: None,
    terms: Mapping[ModelName, Terms] = MappingProxyType({}),
    pooling: int = 0,
    first_s: float = 0.0,
    prefix_reuse: bool = True,
    ttfts: Sequence[float] = (2.0,),
    latency: LatencyConstants | None = None,
) -> World:
    """A world of `models` models (m0, m1, ...) and one engine per role (e0, e1, ...), on `nodes` nodes in turn.

    With `contents` they are so many models under several names, in turn; with 0 nothing is known of their content.
    The first `pooling` models generate nothing: their requests end with the prompt.
    A model's first decode step on an engine takes `first_s` longer, or a turn that warms up takes it before.
    Without `prefix_reuse` engines compute every prompt from its first token.
    `ttfts`: those of the models, seconds, in turn. `latency`: that of every model, as usual without it.
    The memory of a node holds the weights of `host_models` models, or of all with 0; its disk takes 1 s for each.
    """
    pool = _models(models, SLAB_BYTES // 8 + (1 << 14) * odd_blocks, shapes, contents, pooling, ttfts, latency)
    specs = [
        EngineSpec(
            InstanceId(f"e{i}"),
            role,
            slabs,
            host_slabs,
            SLAB_BYTES,
            max_batch,
            node=f"node-{i % nodes}",
            first_s=first_s,
            prefix_reuse=prefix_reuse,
            host_cache_bytes=host_models * 100 * SLAB_BYTES,
            disk_bytes_per_s=100.0 * SLAB_BYTES,
        )
        for i, role in enumerate(roles)
    ]
    settings = config or SchedulerConfig(latency=next(iter(pool.values()))[0].latency)
    return World(settings, pool, specs, delay_s, 0.5, fault, observe, terms)


class Watched:
    """A small world and every Send that its core gave, with its time."""

    def __init__(self, roles: Sequence[Role], **options: Any) -> None:
        self.sends: list[tuple[float, cmd.Send]] = []
        self.world = small_world(roles, observe=self.see, **options)

    def see(self, now: float, event: ev.Event, commands: list[cmd.Command]) -> None:
        self.sends += [(now, c) for c in commands if isinstance(c, cmd.Send)]

    def bodies(self, kind: type, instance: str | None = None) -> list[Any]:
        return [s.body for _, s in self.sends if isinstance(s.body, kind) and instance in (None, s.instance)]

    def ask(self, name: str, model: int, prompt: int, length: int, at: float = 0.1) -> Client:
        return self.world.request(name, ModelName(f"m{model}"), prompt, length, at)

    def all_finished(self) -> bool:
        return all(client.finished for client in self.world.clients.values())
