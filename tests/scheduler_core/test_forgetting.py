"""Weeks of uptime: what is kept of nodes, models and requests goes with them."""

from __future__ import annotations

from dataclasses import replace

from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import PaperSettings, SchedulerConfig
from aegaeon_scheduler.core.domain import (
    Footprint,
    GatewayId,
    Held,
    InstanceId,
    KvShape,
    Memory,
    ModelConfig,
    ModelName,
    Phase,
    Place,
    Role,
    SeqId,
    Slo,
)
from aegaeon_scheduler.core.pool import Pool
from aegaeon_scheduler.core.scheduler import Scheduler

E0, GW, M = InstanceId("e0"), GatewayId("gw"), ModelName("m")
FOOTPRINT = Footprint(10 << 20, 10, KvShape("s"), 1 << 17, 16, 1024)
HELD = Held(SeqId("r", 0), 1, M, 20, 5, 24, Place.DEVICE)
MEMORY = Memory(40, 40)


def up(
    held: tuple[Held, ...] = (), incarnation: str = "1", node: str = "n", instance: InstanceId = E0
) -> ev.InstanceUp:
    return ev.InstanceUp(instance, incarnation, node, Role.UNIFIED, "cpu", 1 << 20, 40, 40, 8, MEMORY, (), held)


def catalog(*names: ModelName) -> ev.CatalogChanged:
    return ev.CatalogChanged(tuple(ModelConfig(name, Slo(1.0, 0.1)) for name in names))


def cached(name: ModelName = M) -> ev.ModelReported:
    return ev.ModelReported(E0, name, Phase.CACHED, FOOTPRINT)


class Brain:
    """Checks its tables after each event."""

    def __init__(self, config: SchedulerConfig | None = None) -> None:
        self.core = Scheduler(replace(config or SchedulerConfig(), policy=PaperSettings()))
        self.on(catalog(M))

    @property
    def pool(self) -> Pool:
        return self.core._pool

    def on(self, *happened: ev.Event, now: float = 0.0) -> None:
        for event in happened:
            self.core.on(now, event)
            self.core.check()


def test_what_an_instance_that_goes_held_is_forgotten():
    brain = Brain()
    brain.on(up((HELD,)), cached(), ev.InstanceDown(E0))
    assert not brain.pool.held


def test_what_an_instance_held_is_forgotten_when_its_sequence_begins_anew_there():
    brain = Brain(SchedulerConfig(reattach_grace_s=0.0))
    stale = replace(HELD, output_tokens=1, kv_tokens=20)  # less than the client has
    brain.on(up((stale,)), cached(), ev.Submitted(HELD.seq, 2, GW, M, 0.0, 20, 5, 100))
    assert not brain.pool.held
    assert not brain.pool.instances[E0].held


def test_hosts_of_nodes_that_are_gone_are_forgotten():
    brain = Brain()
    for hour in range(5):
        instance, now = InstanceId(f"e{hour}"), 3600.0 * hour
        brain.on(up(node=f"spot-{hour}", instance=instance), ev.HostReported(f"spot-{hour}", (M,)), now=now)
        brain.on(ev.InstanceDown(instance), now=now + 1800.0)
    hosts = brain.pool.hosts
    assert [hosts.cached(f"spot-{hour}") for hour in range(4)] == [None] * 4
    assert hosts.cached("spot-4") == {M}, "its engine may be back"


def test_the_host_of_an_engine_that_restarts_is_known_all_the_while():
    brain = Brain()
    brain.on(up(), ev.HostReported("n", ()))
    brain.on(ev.InstanceDown(E0), now=10.0)
    brain.on(up(incarnation="2"), now=20.0)
    assert brain.pool.hosts.cached("n") == frozenset()


def test_estimates_of_models_that_left_the_catalog_are_forgotten():
    brain = Brain()
    brain.on(up())
    for week in range(5):
        name = ModelName(f"tuned-{week}")
        brain.on(catalog(M, name), cached(name), ev.Submitted(SeqId(name, 0), 1, GW, name, 0.0, 20, 0, 100))
        assert (name, "cpu") in dict(brain.pool.estimates.items())
        brain.on(ev.Cancelled(SeqId(name, 0)), catalog(M))
    assert not [key for key, _ in brain.pool.estimates.items() if key[0] != M]
    assert not brain.core.snapshot(0.0).fits


def test_an_engine_forgets_the_first_steps_and_the_failures_of_a_model_that_left_the_catalog():
    brain = Brain()
    name = ModelName("tuned")
    brain.on(up(), catalog(M, name), cached(name))
    inst = brain.pool.instances[E0]
    inst.tried.add(name)
    inst.decoded.add(name)
    inst.failures[name] = 1
    brain.on(catalog(M))
    assert (inst.tried, inst.decoded, inst.failures) == (set(), set(), {})
