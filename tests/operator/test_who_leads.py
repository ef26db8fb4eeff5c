"""Of two schedulers the operator believes the one that leads, in the highest term, and tells both of the catalog."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from operator_objects import KEY
from tests.operator.scripted import SILENT, Answer, scripted
from tests.operator.test_zero import Kept

from aegaeon_operator.kube.store import Store
from aegaeon_operator.reconcile.cluster.facts import EngineFacts, SchedulerFacts

ONE, TWO = (tuple(EngineFacts(f"pool-engine-{n}", "unified", True, 0, 0.0) for n in range(count)) for count in (1, 2))
STANDS_BY = SchedulerFacts("a", standby=True)
LEADS = SchedulerFacts("b", engines=TWO, term=7)
CUT_OFF = SchedulerFacts("c", engines=ONE, term=5)  # it has not heard of the one that leads


async def looked(monkeypatch: pytest.MonkeyPatch, scheduler: Answer, standby: Answer) -> tuple[Any, list[list[str]]]:
    """The GpuPool's status after a reconcile, and the catalog that each scheduler received."""
    answers = {"scheduler": scheduler, "standby": standby}
    schedulers = scripted(monkeypatch, answers.__getitem__)
    cluster, store = Kept(), Store()
    controller = await cluster.reconciled(store, scheduling={"standby": True})
    for name in answers:
        await cluster.ready(store, name)
    await controller.reconcile(KEY)
    await controller.close()
    return cluster.objects["GpuPool", "pool"]["status"], schedulers.catalogs


def scheduler_ready(status: Any) -> tuple[str, str]:
    (found,) = (one for one in status["conditions"] if one["type"] == "SchedulerReady")
    return found["status"], found["message"]


@pytest.mark.parametrize("answers", [(STANDS_BY, LEADS), (LEADS, STANDS_BY), (CUT_OFF, LEADS), (LEADS, SILENT)])
async def test_the_scheduler_of_the_highest_term_counts_and_both_get_the_models(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[Answer, Answer]
) -> None:
    status, received = await looked(monkeypatch, *answers)
    assert (status["engines"]["unified"], scheduler_ready(status)[0]) == ("2/2", "True")
    assert len(received) == len(answers)
    assert set(chain.from_iterable(received)) == {"llama"}


@pytest.mark.parametrize(
    ("answers", "why"), [((STANDS_BY, STANDS_BY), "no scheduler leads"), ((SILENT, STANDS_BY), "does not answer")]
)
async def test_a_pool_without_a_leader_reports_it(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[Answer, Answer], why: str
) -> None:
    ready, message = scheduler_ready((await looked(monkeypatch, *answers))[0])
    assert ready == "False"
    assert why in message


async def test_schedulers_are_asked_at_cluster_addresses_once_their_services_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No name resolves for an operator that takes over while the node with the cluster's DNS is lost."""
    schedulers = scripted(monkeypatch, lambda target: LEADS)
    cluster, store = Kept(), Store()
    controller = await cluster.reconciled(store)
    await cluster.ready(store, "scheduler")
    for address in ("", "10.233.0.7", "10.233.0.7", "fd00::7"):
        service = cluster.objects["Service", "pool-scheduler"]
        store.put(await cluster.apply(service | {"spec": service["spec"] | {"clusterIP": address}}))
        await controller.reconcile(KEY)
    assert schedulers.closed == ["scheduler", "10.233.0.7:7002"]
    await controller.close()
    assert schedulers.opened == schedulers.closed == ["scheduler", "10.233.0.7:7002", "[fd00::7]:7002"]
