"""The lines that `kubectl get gpool,mpool` prints for every state: on-call reads them and knows what is wrong."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from operator_objects import KEY, NOW, Json, gpu_pool, model_pool
from operator_state import PODS, State, broken, pod
from operator_states import BOTH, POOL, RED, STATES, page
from operator_table import rows
from tests.operator.test_conditions_page import reasons

from aegaeon_operator.kube.gather import live
from aegaeon_operator.reconcile.cluster.conditions import is_due
from aegaeon_operator.reconcile.cluster.facts import ChildKey, ModelFacts, Report
from aegaeon_operator.spec.crd import definitions

ROOT = Path(__file__).parents[2]
ALL = {state.title: state for states in STATES.values() for state in states}
NO_ENGINES = {name: component for name, component in PODS.items() if component != "engine"}


def lines(state: State) -> dict[str, dict[str, str]]:
    """Kind and columns of each object that is printed."""
    found = {}
    for body in state.bodies():
        head, row = rows([body], NOW)
        found[body["kind"]] = dict(zip(head, row, strict=True))
    return found


def test_the_page_shows_every_state_as_it_is() -> None:
    shown = (ROOT / "docs/reference/states.md").read_text("utf-8")
    assert shown == "\n".join(page()), "run make generate"


def test_every_reason_that_the_operator_gives_is_that_of_a_state() -> None:
    given = {one["reason"] for state in ALL.values() for body in state.bodies() for one in body["status"]["conditions"]}
    assert reasons() <= given
    text = (ROOT / "docs/kubernetes.md").read_text("utf-8")
    assert not {reason for reason in given if f"`{reason}`" not in text}


@pytest.mark.parametrize("state", ALL.values(), ids=ALL)
def test_a_line_that_is_not_ready_or_degraded_has_a_reason(state: State) -> None:
    for line in lines(state).values():
        if (line["READY"], line["DEGRADED"]) != ("True", "False"):
            assert line["MESSAGE"], line
        assert line["REASON"]
    assert state.table().count("\n") < 10


def test_a_pool_without_engines_serves_nothing_and_makes_no_progress() -> None:
    line = lines(State("", (gpu_pool(engines={"replicas": 0}), RED), components=NO_ENGINES, models={}))
    assert (line["GpuPool"]["ENGINES"], line["GpuPool"]["READY"], line["GpuPool"]["REASON"]) == (
        "0/0",
        "False",
        "NoEngines",
    )
    assert (line["ModelPool"]["READY"], line["ModelPool"]["REASON"]) == ("False", "NoEngines")


@pytest.mark.parametrize(("others", "models"), [((RED,), 2), ((), 0)])
def test_a_pool_whose_spec_is_refused_keeps_the_count_that_protects_it_while_it_has_model_pools(
    others: tuple[Json, ...], models: int
) -> None:
    refused = {**gpu_pool(engines={"replicas": 1, "min": 3}), "status": {"models": 2}}
    (of_pool,) = (one for one in State("", (refused, *others)).reports() if one.about.kind == "GpuPool")
    assert (of_pool.status["conditions"][0]["reason"], of_pool.status["models"]) == ("Invalid", models)


def test_engines_are_counted_as_the_scheduler_has_them_beside_those_wanted() -> None:
    state = State("", (gpu_pool(engines={"replicas": 4}), RED))
    assert lines(state)["GpuPool"]["ENGINES"] == "2/4"
    assert lines(replace(state, detached=("pool-engine-1",)))["GpuPool"]["ENGINES"] == "1/4"
    assert lines(replace(state, scheduler=False))["GpuPool"]["ENGINES"] == "2/4"


def test_the_pod_that_needs_a_person_most_is_named_and_the_others_are_counted() -> None:
    starting = broken("pool-engine-0", "engine", {"waiting": {"reason": "ContainerCreating"}})
    ended = {"terminated": {"exitCode": 1}}
    crashing = broken("pool-engine-1", "engine", {"waiting": {"reason": "CrashLoopBackOff"}}, lastState=ended)
    message = lines(State("", BOTH, {"pool-engine-0": starting, "pool-engine-1": crashing}))["GpuPool"]["MESSAGE"]
    assert "pool-engine-1 crashes with exit code 1" in message
    assert message.endswith("(and 1 more)")


def test_a_pod_running_again_is_not_reported_as_crashing_when_unready_for_another_cause() -> None:
    killed = {"terminated": {"exitCode": 137}}
    again = {
        name: broken(name, "engine", {"running": {}}, started=True, restartCount=1, lastState=killed)
        for name in ("pool-engine-0", "pool-engine-1")
    }
    line = lines(State("", BOTH, again, models={}))["GpuPool"]
    assert (line["REASON"], "pool-engine-0 is running on node node-1, but not ready" in line["MESSAGE"]) == (
        "PodsNotReady",
        True,
    )


def test_an_evicted_pod_is_not_reported_once_it_is_replaced() -> None:
    evicted = pod("pool-gateway-old", "gateway", phase="Failed", reason="Evicted", conditions=[])
    starting = broken("pool-gateway-5c4-a", "gateway", {"waiting": {"reason": "ContainerCreating"}})
    state = State(
        "",
        BOTH,
        {"pool-gateway-old": evicted, "pool-gateway-5c4-a": starting},
        components={**PODS, "pool-gateway-old": "gateway"},
    )
    assert "pool-gateway-5c4-a is starting" in lines(state)["GpuPool"]["MESSAGE"]


def test_an_engine_name_that_starts_a_message_is_not_repeated() -> None:
    failed = ModelFacts("failed", "b-miss: the folder does not exist")
    state = State("", (POOL, model_pool("red", "b-miss")), models={"b-miss": failed})
    assert lines(state)["ModelPool"]["MESSAGE"] == "b-miss: the folder does not exist"


def test_reason_and_degradation_show_without_wide_output() -> None:
    for definition in definitions().values():
        (version,) = definition["spec"]["versions"]
        narrow = [one["name"] for one in version["additionalPrinterColumns"] if not one.get("priority")]
        assert narrow[-5:] == ["Ready", "Degraded", "Reason", "Age", "Message"]


def test_another_cause_is_written_at_once_and_another_number_later() -> None:
    def report(*models: str, done: int = 0) -> Report:
        facts = {name: ModelFacts("fetching", bytes_done=done, bytes_total=10**9) for name in models}
        state = State("", (POOL, model_pool("red", *models)), models=facts)
        return next(one for one in state.reports() if one.about.kind == "ModelPool")

    before = report("llama")
    about = live({**model_pool("red", "llama"), "status": before.status})
    assert not is_due(replace(report("llama", done=500_000_000), about=about), 0.0, 1.0)
    other = report("llama", "qwen", done=500_000_000)
    same_models = {**other.status, "models": before.status["models"], "summary": before.status["summary"]}
    assert is_due(replace(other, about=about, status=same_models), 0.0, 1.0)


def test_a_line_has_a_bounded_length() -> None:
    name = ChildKey("Deployment", KEY.namespace, "pool-gateway")
    message = lines(State("", BOTH, failures={name: "no " * 500}))["GpuPool"]["MESSAGE"]
    assert len(message) == 240
    assert message.endswith("…")


def test_ages_are_those_of_the_objects() -> None:
    body: dict[str, Any] = {**POOL, "status": {}}
    head, row = rows([body], NOW + timedelta(days=1))
    assert row[head.index("AGE")] == "326d"


def test_what_engines_take_beside_their_slabs_is_in_the_status_beside_what_is_reserved() -> None:
    def of_pool(*outside: int) -> Report:
        return next(one for one in State("", BOTH, outside=outside).reports() if one.about.kind == "GpuPool")

    def condition(report: Report) -> tuple[str, str]:
        (found,) = (one for one in report.status["conditions"] if one["type"] == "MemoryReserved")
        return found["status"], found["message"]

    below, above = of_pool(1 << 30, 700 << 20), of_pool(1 << 30, (1 << 30) + 1)
    assert below.status["outsideSlabs"] == {"reserved": "1Gi", "peak": "700Mi"}
    assert condition(below) == (
        "True",
        "pool-engine-0 used up to 700Mi outside its slabs of the reserved 1Gi",
    )
    assert above.status["outsideSlabs"]["peak"] == "1025Mi"
    assert condition(above)[0] == "False"
    assert "raise spec.memory.outsideSlabs" in above.status["message"]
    assert condition(of_pool(1 << 30, 0))[0] == "Unknown"


def test_measured_memory_alone_is_written_once_a_minute() -> None:
    before, more = (
        next(one for one in State("", BOTH, outside=(1 << 30, peak << 20)).reports() if one.about.kind == "GpuPool")
        for peak in (600, 700)
    )
    about = live({**gpu_pool(), "status": before.status})
    assert not is_due(replace(more, about=about), 0.0, 1.0)
    assert is_due(replace(more, about=about), 0.0, 61.0)
