"""Weeks of uptime: what is kept of nodes, models and requests goes with them."""

from __future__ import annotations

from dataclasses import replace

from scheduler_core import test_scheduler
from scheduler_core.test_scheduler import E0, FOOTPRINT, M, submitted, up

from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.config import SchedulerConfig
from aegaeon_scheduler.core.domain import Held, InstanceId, ModelConfig, ModelName, Phase, Place, SeqId, Slo
from aegaeon_scheduler.core.pool import Pool

HELD = Held(SeqId("r", 0), 1, M, 20, 5, 24, Place.DEVICE)


def catalog(*names: ModelName) -> ev.CatalogChanged:
    return ev.CatalogChanged(tuple(ModelConfig(name, Slo(1.0, 0.1)) for name in names))


def cached(name: ModelName = M) -> ev.ModelReported:
    return ev.ModelReported(E0, name, Phase.CACHED, FOOTPRINT)


class Brain(test_scheduler.Brain):
    """A scheduler whose tables are looked at."""

    @property
    def pool(self) -> Pool:
        return self.core._pool

    def happen(self, *events: ev.Event, now: float = 0.0) -> None:
        for event in events:
            self.on(event, now)


def test_what_an_instance_that_goes_held_is_forgotten():
    brain = Brain()
    brain.happen(up(held=(HELD,)), cached(), ev.InstanceDown(E0))
    assert not brain.pool.held


def test_what_an_instance_held_is_forgotten_when_its_sequence_begins_anew_there():
    brain = Brain(SchedulerConfig(reattach_grace_s=0.0))
    stale = replace(HELD, output_tokens=1, kv_tokens=20)  # less than the client has
    brain.happen(up(held=(stale,)), cached(), submitted(epoch=2, prefix=5))
    assert not brain.pool.held
    assert not brain.pool.instances[E0].held


def test_hosts_of_nodes_that_are_gone_are_forgotten():
    brain = Brain()
    for hour in range(5):
        instance, now = InstanceId(f"e{hour}"), 3600.0 * hour
        brain.happen(up(node=f"spot-{hour}", instance=instance), ev.HostReported(f"spot-{hour}", (M,)), now=now)
        brain.happen(ev.InstanceDown(instance), now=now + 1800.0)
    hosts = brain.pool.hosts
    assert [hosts.cached(f"spot-{hour}") for hour in range(4)] == [None] * 4
    assert hosts.cached("spot-4") == {M}, "its engine may be back"


def test_the_host_of_an_engine_that_restarts_is_known_all_the_while():
    brain = Brain()
    brain.happen(up(), ev.HostReported("n", ()))
    brain.happen(ev.InstanceDown(E0), now=10.0)
    brain.happen(up(incarnation="2"), now=20.0)
    assert brain.pool.hosts.cached("n") == frozenset()


def test_estimates_of_models_that_left_the_catalog_are_forgotten():
    brain = Brain()
    brain.happen(up())
    for week in range(5):
        name = ModelName(f"tuned-{week}")
        brain.happen(catalog(M, name), cached(name), submitted(name, model=name))
        assert (name, "cpu") in dict(brain.pool.estimates.items())
        brain.happen(ev.Cancelled(SeqId(name, 0)), catalog(M))
    assert not [key for key, _ in brain.pool.estimates.items() if key[0] != M]
    assert not brain.core.snapshot(0.0).fits


def test_an_engine_forgets_the_first_steps_and_the_failures_of_a_model_that_left_the_catalog():
    brain = Brain()
    name = ModelName("tuned")
    brain.happen(up(), catalog(M, name), cached(name))
    inst = brain.pool.instances[E0]
    inst.tried.add(name)
    inst.decoded.add(name)
    inst.failures[name] = 1
    brain.happen(catalog(M))
    assert (inst.tried, inst.decoded, inst.failures) == (set(), set(), {})
