"""A pool without a standby is given one while its scheduler is silent, and for no longer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from operator_objects import KEY, PLATFORM, gpu_pool
from tests.operator.scripted import SILENT, Answer, scripted
from tests.operator.test_zero import Kept

from aegaeon_operator.kube.controller import Controller
from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.facts import SchedulerFacts
from aegaeon_operator.reconcile.cluster.failover import BACK_S, SILENT_S, Failover

LEADS = "leads"
Looks = list[tuple[float, bool | str | None]]


@pytest.mark.parametrize(
    ("there", "looks", "wanted"),
    [
        (False, [(0, True), (1, False), (1 + SILENT_S - 1, False)], False),
        (False, [(0, True), (1, False), (1 + SILENT_S, False)], True),
        (False, [(0, False), (4, True), (5, False), (SILENT_S + 1, False)], False),
        (False, [(0, None), (100, None)], False),
        (False, [(0, False), (5, None), (100, None)], False),
        (True, [(0, False), (100, False)], True),
        (True, [(0, None), (100, None)], True),
        (True, [(0, LEADS), (BACK_S - 1, LEADS)], True),
        (True, [(0, LEADS), (BACK_S, LEADS)], False),
        (True, [(0, LEADS), (20, False), (21, LEADS), (BACK_S + 20, LEADS)], True),
        (True, [(0, True), (10 * BACK_S, True)], True),
        (True, [], True),
    ],
    ids=(
        "silent for a moment",
        "silent for long",
        "answered in between",
        "no pod that is ready: Kubernetes starts one",
        "its pod is not ready any more",
        "still silent",
        "another pod is not ready yet",
        "back for a moment",
        "back",
        "silent again in between",
        "it stands by: the second one leads",
        "an operator that has just begun to lead changes nothing",
    ),
)
def test_failover_takes_a_period_of_silence_and_its_end_a_period_of_the_first_ones_lead(
    there: bool, looks: Looks, wanted: bool
) -> None:
    failover, now = Failover(), 0.0
    for now, answers in looks:
        failover.observe(True if isinstance(answers, str) else answers, answers == LEADS, now)
    assert failover.needs_second(there, now) is wanted


async def test_a_silent_scheduler_with_a_ready_pod_gets_a_standby_until_it_answers(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    leads, stands_by = SchedulerFacts("a", term=7), SchedulerFacts("b", standby=True)
    answers: dict[str, Answer] = {"scheduler": leads, "standby": leads}
    scripted(monkeypatch, answers.__getitem__)
    cluster, store, now = Kept(), Store(), [0.0]
    cluster.objects["GpuPool", KEY.name] = gpu_pool()
    store.put(gpu_pool())
    controller = Controller(cluster, store, PLATFORM, lambda: now[0])

    async def look(at: float) -> tuple[int, str]:
        """Second schedulers asked for after two looks, whose pods are ready, and whether the pool's scheduler is."""
        now[0] = at
        for _ in range(2):
            await controller.reconcile(KEY)
            for name in answers:
                deployment = cluster.objects["Deployment", f"pool-{name}"]
                store.put(
                    await cluster.apply(deployment | {"status": {"readyReplicas": deployment["spec"]["replicas"]}})
                )
        conditions = cluster.objects["GpuPool", KEY.name]["status"]["conditions"]
        (ready,) = (one["status"] for one in conditions if one["type"] == "SchedulerReady")
        return int(cluster.objects["Deployment", "pool-standby"]["spec"]["replicas"]), ready

    assert await look(0) == (0, "True")
    answers["scheduler"] = SILENT
    assert await look(1) == (0, "True"), "what was so a moment ago stands"
    assert await look(1 + SILENT_S) == (1, "True"), "the second one leads"
    answers["scheduler"] = stands_by
    assert await look(60) == (1, "True")
    assert await look(60 + 2 * BACK_S) == (1, "True"), "the leader stays"
    answers |= {"scheduler": replace(leads, term=8), "standby": stands_by}
    assert await look(100 + 2 * BACK_S) == (1, "True")
    assert await look(100 + 3 * BACK_S) == (0, "True")
    assert caplog.text.count("Deadline Exceeded") == 1, "not at every look"
    await controller.close()
