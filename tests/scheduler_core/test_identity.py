"""A name that stands for another model than it did, an engine that begins with a model anew: nothing is mixed."""

from __future__ import annotations

from dataclasses import replace

from scheduler_core.test_failed_models import Brain, cached, loads, policies, rejects
from scheduler_core.test_scheduler import E0, M, of, submitted, up

from aegaeon_scheduler.core import commands as cmd
from aegaeon_scheduler.core import events as ev
from aegaeon_scheduler.core.domain import ModelConfig, Phase, RejectCode, Slo


def catalog(identity: str) -> ev.CatalogChanged:
    return ev.CatalogChanged((ModelConfig(M, Slo(1.0, 0.1), identity=identity),))


def done(commands: list[cmd.Command]) -> list[ev.CommandDone]:
    """The loads of these commands end well."""
    memory = up().memory
    return [ev.CommandDone(where, load, 0.1, memory) for where, load in loads(commands)]


@policies
def test_a_load_names_the_identity_of_the_model(policy):
    brain = Brain(policy)
    brain.on(catalog("one"))
    brain.on(up())
    brain.on(cached())
    (load,) = of(brain.on(submitted()), cmd.Load)
    assert (load.model, load.identity) == (M, "one")


@policies
def test_requests_for_a_former_model_are_not_answered_by_its_successor(policy):
    brain = Brain(policy)
    brain.on(catalog("one"))
    brain.on(up())
    out = brain.on(cached()) + brain.on(submitted("old"))
    for event in done(out):
        brain.on(event)
    assert [code for _, code, _ in rejects(brain.on(catalog("two")))] == [RejectCode.CHANGED]
    assert not loads(brain.on(submitted("new")))  # no engine has the new one yet
    (load,) = of(brain.on(cached()), cmd.Load)
    assert load.identity == "two"


@policies
def test_an_engine_that_fetches_a_model_again_holds_no_kv_of_it(policy):
    """As when it attached with the model of before: it is loaded again, and not taken for resident."""
    brain = Brain(policy)
    brain.on(replace(up(), resident=(M,)))
    assert not loads(brain.on(cached()) + brain.on(submitted("a")))
    out = brain.on(ev.ModelReported(E0, M, Phase.FETCHING))
    assert [lost.blameless for lost in of(out, cmd.SequenceLost)] == [True]
    brain.on(submitted("a", epoch=2))
    assert [where for where, _ in loads(brain.on(cached()))] == [E0]
