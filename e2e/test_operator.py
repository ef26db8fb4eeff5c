"""The operator on a real API server: what it makes, that it rests, recovers and is followed."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from e2e.kubectl import kubectl
from e2e.operating import (
    accepted,
    apply,
    kill,
    leader,
    models,
    objects,
    operator,
    pool,
    start,
    writes,
)
from e2e.polling import poll

pytestmark = pytest.mark.cluster


def test_a_pool_is_created_and_then_nothing_is_written(namespaced: Path) -> None:
    apply(namespaced, pool("demo", engines={"replicas": 2}), models("red", "demo", "llama"))
    with operator(namespaced):
        poll("both are accepted", lambda: accepted(namespaced, "gpupools,modelpools") == 2, 60)
        names = {
            (one["kind"], one["metadata"]["name"]) for one in objects(namespaced, "deploy,sts,svc,netpol,pdb,secret")
        }
        assert {
            ("Deployment", "demo-scheduler"),
            ("StatefulSet", "demo-engine"),
            ("Secret", "demo-engine-tls"),
        } <= names
        before = settled_writes(namespaced)
        kubectl(namespaced, "annotate", "gpool", "demo", "touched=yes")
        time.sleep(5)  # what must not happen needs time in which it could
        assert (writes(namespaced) - before).total() <= 1, writes(namespaced) - before


def settled_writes(kubeconfig: Path) -> Counter[str]:
    """As soon as none came for a while: controllers of the cluster fill in what is theirs."""
    before, now = Counter[str](), writes(kubeconfig)
    while now != before:
        time.sleep(3)  # nothing announces that no more will be written
        before, now = now, writes(kubeconfig)
    return now


def test_drift_is_corrected_and_deleted_objects_are_created_again(namespaced: Path) -> None:
    apply(namespaced, pool("demo", engines={"replicas": 2}))

    def workload() -> dict[str, Any]:
        found = [one for one in objects(namespaced, "statefulsets") if one["metadata"]["name"] == "demo-engine"]
        return found[0] if found else {"metadata": {"uid": None}, "spec": {"replicas": -1}}

    def engines() -> int:
        return int(workload()["spec"]["replicas"])

    with operator(namespaced):
        poll("engines are there", lambda: engines() == 2, 60)
        kubectl(namespaced, "scale", "statefulset", "demo-engine", "--replicas=5")
        poll("two engines again", lambda: engines() == 2, 90)
        seen = {None, workload()["metadata"]["uid"]}
        # kubectl's own wait for an object that is made again at once may not end.
        kubectl(namespaced, "delete", "statefulset", "demo-engine", "--cascade=orphan", "--wait=false")
        poll("another StatefulSet", lambda: workload()["metadata"]["uid"] not in seen and engines() == 2, 90)
        kubectl(namespaced, "scale", "gpool", "demo", "--replicas=3")
        poll("three engines", lambda: engines() == 3, 90)


def test_objects_that_a_pool_no_longer_needs_are_deleted(namespaced: Path) -> None:
    selector = {"nodeSelector": {"disk": "fast"}}
    apply(namespaced, pool("demo", podTemplate=selector, controlPodTemplate=selector))

    def selected() -> int:
        pods = [one["spec"]["template"]["spec"] for one in objects(namespaced, "statefulsets,deployments")]
        return sum("nodeSelector" in one for one in pods) if len(pods) == 4 else -1

    with operator(namespaced):
        poll("engines, schedulers and gateways say where", lambda: selected() == 4, 60)
        apply(namespaced, pool("demo"))
        poll("they do no more", lambda: selected() == 0, 90)


def test_objects_with_our_names_and_another_owner_are_left_alone(namespaced: Path) -> None:
    mine = ("create",)
    kubectl(namespaced, *mine, "secret", "generic", "demo-gateway-tls", "--from-literal=tls.crt=mine")
    kubectl(namespaced, *mine, "service", "clusterip", "demo-gateway", "--tcp=9999:9999")
    apply(namespaced, pool("demo"), models("red", "demo", "llama"))

    def said() -> str:
        (found,) = objects(namespaced, "gpupools")
        conditions = found.get("status", {}).get("conditions", ())
        return next((one["message"] for one in conditions if one["reason"] == "ApplyFailed"), "")

    with operator(namespaced):
        poll("it says so", lambda: "demo-gateway-tls" in said() and "Service demo-gateway" in said(), 90, said)
        assert said().count("is not owned by this pool") == 2
        theirs = [one for one in objects(namespaced, "services,secrets") if "ownerReferences" not in one["metadata"]]
        assert {one["metadata"]["name"] for one in theirs} == {"demo-gateway-tls", "demo-gateway"}
        kubectl(namespaced, "delete", "secret/demo-gateway-tls", "service/demo-gateway")
        poll("both are accepted", lambda: accepted(namespaced, "gpupools,modelpools") == 2, 60)


def test_a_pool_that_is_replaced_by_one_of_its_name_makes_its_own(namespaced: Path) -> None:
    """What the first one had made is the garbage collector's."""
    apply(namespaced, pool("demo"))

    def owners() -> set[str]:
        found = objects(namespaced, "secrets,services,deployments,statefulsets")
        return {owner["uid"] for one in found for owner in one["metadata"].get("ownerReferences", ())}

    def uid() -> str:
        return str(objects(namespaced, "gpupools")[0]["metadata"]["uid"])

    with operator(namespaced):
        for _ in range(3):
            poll("all of it is its own", lambda: accepted(namespaced, "gpupools") == 1 and owners() == {uid()}, 60)
            kubectl(namespaced, "delete", "gpool", "demo", "--wait=false")
            apply(namespaced, pool("demo"))
        poll("the last one is accepted", lambda: accepted(namespaced, "gpupools") == 1 and owners() == {uid()}, 60)


def test_after_a_kill_at_any_moment_the_next_operator_reaches_the_same_state(namespaced: Path) -> None:
    apply(namespaced, pool("demo", engines={"replicas": 1}), models("red", "demo", "llama"))
    for patience in (3.0, 3.3, 3.6):  # a start, and some writes
        process = start(namespaced)
        time.sleep(patience)  # a moment that nothing announces is what is tested
        kill(process)
    with operator(namespaced):
        poll("both are accepted", lambda: accepted(namespaced, "gpupools,modelpools") == 2, 60)
        assert {one["metadata"]["name"] for one in objects(namespaced, "deploy,sts")} == {
            f"demo-{component}" for component in ("engine", "gateway", "scheduler", "standby")
        }


def test_a_standby_takes_over_when_the_leader_is_killed(namespaced: Path) -> None:
    first = start(namespaced, "first")
    poll("the first leads", lambda: leader(namespaced) == "first", 90)
    standby = start(namespaced, "standby")
    try:
        apply(namespaced, pool("before"))
        poll("the leader works", lambda: accepted(namespaced, "gpupools") == 1, 90)
        kill(first)
        apply(namespaced, pool("after"))
        poll("the standby has worked", lambda: accepted(namespaced, "gpupools") == 2, 90)
        assert leader(namespaced) == "standby"
    finally:
        kill(first)
        kill(standby)
