"""What the operator takes for a pool that does not answer, and what it does not."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from operator_objects import NOW, condition, gpu_pool, model_pool
from operator_state import State, unplaced

from aegaeon_operator.kube.gather import live
from aegaeon_operator.kube.scheduler import facts
from aegaeon_operator.reconcile.cluster.conditions import SLOW_S as SLOW_WRITES_S
from aegaeon_operator.reconcile.cluster.conditions import is_due
from aegaeon_operator.reconcile.cluster.facts import EngineFacts, ModelFacts, Report, SchedulerFacts, Wait
from aegaeon_operator.reconcile.cluster.progress import MARGIN_S, SILENT_S, SLOW_S, ProgressMonitor
from aegaeon_proto.v1 import admin_pb2, gateway_pb2, model_pb2

IDLE = EngineFacts("a", "unified", True, 0, 0.0)
OTHER = replace(IDLE, name="b")
LOADS, LOADS_OTHER = (replace(IDLE, prepares=(name,)) for name in ("llama", "qwen"))
CACHED = ModelFacts("cached", busy_s=1.0)


def engine(turn_s: float, turn_of: str = "llama", prepares: tuple[str, ...] = ()) -> EngineFacts:
    return replace(IDLE, turn_of=turn_of, turn_s=turn_s, prepares=prepares)


def asked(
    age_s: float, *engines: EngineFacts, model: ModelFacts = CACHED, worked_s: float | None = None
) -> SchedulerFacts:
    """A request of llama is open, and perhaps of qwen, too."""
    models = {"llama": model, "qwen": CACHED}
    return SchedulerFacts("x", models, engines or (IDLE,), waiting={"llama": Wait(age_s, worked_s)})


def quiet(busy_s: float = 1.0) -> SchedulerFacts:
    """Nothing is open."""
    return SchedulerFacts("x", {"llama": replace(CACHED, busy_s=busy_s), "qwen": CACHED}, (IDLE,))


Looks = Iterable[tuple[float, SchedulerFacts]]


def verdict(looks: Looks) -> tuple[bool, bool]:
    """Of llama at the last look: it is not answered; nothing is."""
    answers = ProgressMonitor()
    last = [answers.of(seen, now) for now, seen in looks][-1]
    return last.models["llama"].unanswered, last.stopped


@pytest.mark.parametrize(
    "looks",
    [
        [(0, asked(SILENT_S - 1))],
        [(0, asked(60, worked_s=1.0)), (5, asked(65, worked_s=6.0))],
        [(0, asked(60, engine(3)))],
        [(0, asked(60, OTHER, engine(3, "qwen")))],
        [(0, asked(60, engine(SLOW_S - 1, prepares=("llama",))))],
        [(0, asked(60, LOADS)), (5, asked(65))],
        [(0, asked(300, LOADS)), (SLOW_S - 1, asked(419, LOADS))],
        [(0, asked(300, engine(1, "qwen"))), (5, asked(305, LOADS)), (20, asked(320, LOADS)), (25, asked(325))],
        [(0, asked(600, model=ModelFacts("fetching"))), (5, asked(605)), (13, asked(613))],
        [(0, asked(600, model=replace(CACHED, apart=True)))],
        [(0, asked(600, model=replace(CACHED, roles=frozenset({"decode"}))))],
        [(0, asked(60, replace(IDLE, attached=False))), (5, asked(65))],
        [(0, quiet()), (3600, quiet())],
    ],
    ids=(
        "a request that came just now",
        "a long prompt, of which steps are reported",
        "a step that is young",
        "a queue behind another model",
        "first steps, which compile",
        "a load that has ended",
        "a long load",
        "a queue, then a load",
        "a fetch that has ended",
        "no decoder, which Routable says",
        "none that prefills, which EnginesReady says",
        "an engine that has come back",
        "no traffic",
    ),
)
def test_what_is_served_is_not_reported(looks: Looks) -> None:
    assert verdict(looks) == (False, False)


@pytest.mark.parametrize(
    ("looks", "stopped"),
    [
        ([(0, asked(SILENT_S))], True),
        ([(0, asked(60, worked_s=SILENT_S))], True),
        ([(0, asked(SILENT_S, engine(SILENT_S)))], True),
        ([(0, asked(SILENT_S, engine(SILENT_S, "qwen")))], True),
        ([(0, asked(SILENT_S, engine(SILENT_S, prepares=("qwen",))))], True),
        ([(0, asked(SLOW_S, engine(SLOW_S, prepares=("llama",))))], True),
        ([(0, asked(1, LOADS)), (SLOW_S, asked(SLOW_S, LOADS))], True),
        ([(0, asked(1, LOADS_OTHER)), (SLOW_S, asked(SLOW_S, LOADS_OTHER))], True),
        ([(0, asked(SILENT_S, engine(SILENT_S), replace(OTHER, turn_of="qwen", turn_s=0.1)))], False),
        ([(0, asked(3)), (4, asked(0.5)), (9, asked(0.5))], True),
        ([(0, asked(60, worked_s=2.0)), (7, replace(asked(67), incarnation="y"))], True),
        ([(0, asked(SILENT_S)), (5, quiet()), (3600, quiet())], True),
    ],
    ids=(
        "idle engines",
        "steps that have ended",
        "an engine stuck in a step of it",
        "an engine stuck in a step of another",
        "the same while it loads a third",
        "first steps without end",
        "a load without end",
        "a load of another without end",
        "one of two engines stuck",
        "clients that give up and try again",
        "a new leader that goes on with nothing",
        "clients that gave up",
    ),
)
def test_requests_for_which_nothing_is_computed_are_reported(looks: Looks, stopped: bool) -> None:
    assert verdict(looks) == (True, stopped)


def test_a_report_ends_with_the_next_step_and_not_with_the_end_of_traffic() -> None:
    silent = (0, asked(SILENT_S))
    assert verdict([silent, (5, quiet(busy_s=1.5))]) == (False, False)
    assert verdict([silent, (5, asked(14, worked_s=0.5, model=replace(CACHED, busy_s=1.5)))]) == (False, False)
    assert verdict([silent, (1, asked(10, replace(IDLE, attached=False))), (5, quiet())])[0] is False
    elsewhere = replace(quiet(), models={"llama": CACHED, "qwen": replace(CACHED, busy_s=9.0)})
    assert verdict([silent, (5, elsewhere)]) == (True, False), "another model is served"


@pytest.mark.parametrize(("age_s", "again_s"), [(0.0, SILENT_S), (4.9, SILENT_S - 4.9), (20.0, float("inf"))])
def test_the_next_look_comes_when_a_silence_has_lasted_too_long(age_s: float, again_s: float) -> None:
    answers = ProgressMonitor()
    answers.of(asked(age_s), 100.0)
    assert answers.again_in == pytest.approx(again_s + MARGIN_S)
    answers.of(quiet(), 101.0)
    assert answers.again_in == float("inf")


def test_a_step_that_began_late_is_checked_when_it_has_lasted_too_long() -> None:
    answers = ProgressMonitor()
    assert not answers.of(asked(SILENT_S, engine(SILENT_S - 1.5)), 100.0).stopped
    assert answers.again_in == pytest.approx(1.5 + MARGIN_S)
    assert answers.of(asked(SILENT_S + 1.75, engine(SILENT_S + MARGIN_S)), 101.75).stopped


def test_what_a_scheduler_says_of_steps_and_gateways_are_facts() -> None:
    status = admin_pb2.AdminStatus(
        pool=gateway_pb2.PoolStatus(
            instances=[
                gateway_pb2.InstanceStatus(instance="a", running="llama", turn_s=3.5, first_steps=True, loading="q, r")
            ],
            models=[
                gateway_pb2.ModelTraffic(model="llama", worked_s=0.0, answered_at=1000.9),
                gateway_pb2.ModelTraffic(model="qwen", answered_at=900.0),
            ],
            sequences=[
                gateway_pb2.SequenceStatus(model=model, state=state, age_s=age_s)
                for model, state, age_s in (("llama", "decode", 2.0), ("llama", "queued", 7.0), ("qwen", "lost", 9.0))
            ],
        ),
        catalog=gateway_pb2.CatalogStatus(models=[gateway_pb2.ModelStatus(spec=model_pb2.ModelSpec(name="llama"))]),
        gateways=[admin_pb2.GatewayStatus(gateway=name, attached=name != "c") for name in "abc"],
    )
    seen = facts(status, slab_bytes=1)
    assert (seen.gateways, seen.answered_at, seen.waiting) == ({"a", "b"}, 1000, {"llama": Wait(7.0, 0.0)})
    (only,) = seen.engines
    assert (only.turn_of, only.turn_s, only.prepares) == ("llama", 3.5, ("q", "r", "llama"))
    status.pool.models[0].ClearField("worked_s")
    assert facts(status, slab_bytes=1).waiting == {"llama": Wait(7.0, None)}
    status.pool.instances[0].ClearField("turn_s")
    assert facts(status, slab_bytes=1).waiting == {}, "of a scheduler of an older release"


def of_pool(state: State) -> Report:
    return next(each for each in state.reports() if each.about.kind == "GpuPool")


def test_the_last_answer_is_written_once_a_minute_and_outlives_the_scheduler_that_gave_it() -> None:
    pool, red = gpu_pool(), model_pool("red", "llama")
    before = of_pool(State("", (pool, red)))
    assert before.status["lastAnswered"] == "2026-11-21T23:59:25Z"
    body = {**pool, "status": before.status}
    for restarted in (State("", (body, red), scheduler=False), State("", (body, red), says={"answered_at": 0})):
        assert of_pool(restarted).status["lastAnswered"] == before.status["lastAnswered"]
    ahead = State("", (body, red), says={"answered_at": 4_000_000_000})
    assert of_pool(ahead).status["lastAnswered"] == NOW.strftime("%Y-%m-%dT%H:%M:%SZ"), "of a clock that is ahead"
    later = replace(before, about=live(body), status={**before.status, "lastAnswered": "2026-11-21T23:59:59Z"})
    assert (is_due(later, 0.0, SLOW_WRITES_S - 1), is_due(later, 0.0, SLOW_WRITES_S)) == (False, True)


def test_a_pool_whose_engines_of_a_role_are_missing_says_why_and_not_that_it_does_not_answer() -> None:
    split = gpu_pool(prefill={"replicas": 1}, decode={"replicas": 1})
    del split["spec"]["engines"]
    pending = unplaced("pool-prefill-0", "prefill", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    roles = {"pool-scheduler-0": "scheduler", "pool-prefill-0": "prefill", "pool-decode-0": "decode"}
    state = State(
        "", (split, model_pool("red", "llama")), {"pool-prefill-0": pending}, components=roles, says={"stopped": True}
    )
    assert condition({"status": of_pool(state).status}, "EnginesReady")["reason"] == "Unschedulable"
