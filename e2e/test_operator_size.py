"""The operator with many objects, and with odd ones."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from e2e.fuzz import DOCUMENTS, PLACES, VALUES, changed
from e2e.kubectl import kubectl
from e2e.operating import accepted, create, models, namespace_of, objects, operator, pool, resident_mb, writes
from e2e.polling import poll

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_hundred_pools_and_a_thousand_model_pools(api: client.ApiClient, namespaced: Path) -> None:
    # Pods that may not be created are retried again and again: most of the load on the API server.
    kubectl(namespaced, "delete", "quota", "--all")
    nowhere = {"nodeSelector": {"there-is": "none"}}
    pools = [pool(f"pool-{one}", gateway={"replicas": 0}, controlPodTemplate=nowhere) for one in range(100)]
    tenants = [models(f"models-{one}", f"pool-{one % 100}", f"m{one}") for one in range(1000)]

    def all_accepted() -> bool:
        return accepted(namespaced, "gpupools,modelpools") == 1100

    def all_have_engines() -> bool:
        return len(objects(namespaced, "statefulsets")) == 100

    def at_rest() -> bool:
        before = writes(namespaced)
        time.sleep(10)  # a write that is still to come needs time in which it could
        return writes(namespaced) == before

    with operator(namespaced) as process:
        began = time.monotonic()
        with ThreadPoolExecutor(8) as threads:  # kubectl would take most of the time
            list(threads.map(lambda one: create(api, namespace_of(namespaced), one), [*pools, *tenants]))
        poll("all are accepted", all_accepted, 300, every_s=2)  # a list of 1,100 is work
        took = time.monotonic() - began
        resident = resident_mb(process.pid)
        poll("controllers of the cluster have filled in what is theirs", at_rest, 180)
        before = writes(namespaced)
        time.sleep(30)  # what must not happen needs time in which it could
        rest = writes(namespaced) - before
    kubectl(namespaced, "delete", "statefulset", "--all")  # of every pool, while no operator runs
    began = time.monotonic()
    with operator(namespaced):
        poll("each pool has its engines again", all_have_engines, 120, every_s=1)
        resync = time.monotonic() - began
    print(f"{took:.0f} s, {resident:.0f} MB, {rest.total()} writes in 30 s at rest, {resync:.0f} s after a restart")
    assert took < 120
    assert resident < 400
    assert not rest
    assert resync < 40


def test_whatever_the_server_accepts_never_fails_the_operator(
    api: client.ApiClient, namespaced: Path, tmp_path: Path
) -> None:
    """A thousand objects with one field that is odd: each that is taken gets a status, and no bug is logged."""
    numbers = itertools.count()
    base, _ = DOCUMENTS
    create(api, namespace_of(namespaced), base)

    @settings(max_examples=1000, deadline=None)
    @given(place=st.sampled_from(PLACES), value=VALUES)
    def try_one(place: tuple[int, tuple[Any, ...]], value: Any) -> None:
        document = changed(*place, value)
        document["metadata"]["name"] = f"odd-{next(numbers)}"
        if document["kind"] == "ModelPool" and place[1][:2] not in (("spec",), ("spec", "gpuPoolRef")):
            document["spec"]["gpuPoolRef"]["namespace"] = namespace_of(namespaced)
        with suppress(ApiException):  # test_crds.py looks at what is refused
            create(api, namespace_of(namespaced), document)

    log = tmp_path / "operator.log"
    with log.open("wb") as said, operator(namespaced, said):
        try_one()
        poll("all have a status", lambda: not silent(namespaced), 300)
    there = objects(namespaced, "gpupools,modelpools")
    print(f"{len(there)} odd objects were taken")
    assert len(there) > 50
    assert "Traceback" not in log.read_text("utf-8")


def silent(kubeconfig: Path) -> list[str]:
    """Objects whose status does not cover their current spec."""
    return [
        found["metadata"]["name"]
        for found in objects(kubeconfig, "gpupools,modelpools")
        if found.get("status", {}).get("observedGeneration") != found["metadata"]["generation"]
    ]
