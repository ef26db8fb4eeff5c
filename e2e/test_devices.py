"""Engines that get devices by resource claims, and engines that a queue holds: the API server's own kinds and a real
scheduler; nodes have no kubelets, and a driver is what it publishes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from e2e.claims.manifests import CLAIMS, RESOURCES, allocated, claim_template, device_class, devices_of
from e2e.cluster.layout import Layout
from e2e.fake_nodes import LABEL, fake_nodes, scheduling
from e2e.gating_webhook import GATE, QUEUE, gating
from e2e.kubectl import in_namespace, kubectl
from e2e.operating import apply, models, objects, operator, pool
from e2e.polling import poll

Json = dict[str, Any]
NAMESPACE = "aegaeon-devices"
CPUS = {"fake-one": 32, "fake-two": 32}
HERE = {"nodeSelector": LABEL}
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]


@pytest.fixture
def server(kubeconfig: Path, control_plane: Layout, api: client.ApiClient, tmp_path: Path) -> Iterator[Path]:
    """A namespace on two nodes, with a scheduler of pods."""
    own = in_namespace(kubeconfig, NAMESPACE, tmp_path)
    with scheduling(control_plane), fake_nodes(api, NAMESPACE, CPUS):
        kubectl(own, "create", "namespace", NAMESPACE)
        try:
            yield own
        finally:
            kubectl(own, "delete", "namespace", NAMESPACE, "--timeout=240s")


@pytest.fixture
def devices(server: Path) -> Iterator[Path]:
    """One device on each node, as their driver would publish them, and a template of claims for one."""
    published = [device_class(), *(devices_of(node, 1) for node in CPUS)]
    apply(server, *published, claim_template())
    try:
        yield server
    finally:
        kubectl(server, "delete", "-f", "-", stdin="\n---\n".join(map(json.dumps, published)))


def engines(server: Path) -> list[Json]:
    """Their pods, by name."""
    of = [one for one in objects(server, "pods") if one["metadata"]["name"].startswith("demo-engine-")]
    return sorted(of, key=lambda one: str(one["metadata"]["name"]))


def placed(server: Path) -> dict[str, str]:
    """Nodes of engines that have one."""
    return {one["metadata"]["name"]: one["spec"]["nodeName"] for one in engines(server) if one["spec"].get("nodeName")}


def condition(server: Path, kind: str) -> tuple[str, str, str]:
    """Status, reason and message of one of the pool's."""
    (found,) = objects(server, "gpupools")
    conditions = {one["type"]: one for one in found.get("status", {}).get("conditions", ())}
    one = conditions.get(kind, {"status": "", "reason": "", "message": ""})
    return one["status"], one["reason"], one["message"]


def counted(server: Path) -> str:
    (found,) = objects(server, "gpupools")
    return str(found.get("status", {}).get("engines", {}).get("unified", ""))


def test_each_engine_gets_a_claim_of_its_own_and_waits_where_no_device_is_left(devices: Path) -> None:
    template = {**HERE, "resourceClaims": CLAIMS, "resources": RESOURCES}
    gpu = {"device": "cuda:0"}
    whole = pool("demo", engines={"replicas": 3}, accelerator=gpu, podTemplate=template, controlPodTemplate=HERE)
    with operator(devices):
        apply(devices, whole, models("red", "demo", "llama"))
        poll("two have a device", lambda: len(placed(devices)) == 2, 90)

        assert allocated(objects(devices, "resourceclaims")) == placed(devices)
        assert set(placed(devices).values()) == set(CPUS)
        poll("two count", lambda: counted(devices) == "2/3", 60)
        poll("why not the third", lambda: "cannot allocate all claims" in condition(devices, "EnginesReady")[2], 60)
        assert condition(devices, "EnginesReady")[:2] == ("True", "SomeReady")
        (status,) = (one["status"] for one in objects(devices, "gpupools"))
        assert status["gpus"]["used"] == 3

        apply(devices, devices_of("fake-one", 2, generation=2))
        poll("a device came for the third", lambda: counted(devices) == "3/3", 90)
        assert sorted(allocated(objects(devices, "resourceclaims")).values()) == ["fake-one", "fake-one", "fake-two"]
        assert condition(devices, "EnginesReady")[:2] == ("True", "AllReady")


def test_engines_of_a_queue_wait_for_their_admission_and_are_not_replaced(
    server: Path, control_plane: Layout, api: client.ApiClient, tmp_path: Path
) -> None:
    whole = pool("demo", engines={"replicas": 2}, podTemplate=HERE, controlPodTemplate=HERE)
    whole["metadata"]["labels"] = {QUEUE: "gpus"}
    with gating(api, control_plane.machine_ip, NAMESPACE, tmp_path), operator(server):
        apply(server, whole, models("red", "demo", "llama"))
        held = "is suspended: Kueue has not admitted it from LocalQueue gpus yet"
        poll("both are held", lambda: held in condition(server, "EnginesReady")[2], 90)
        assert condition(server, "EnginesReady")[:2] == ("False", "Suspended")
        assert condition(server, "Progressing")[0] == "True"
        first, second = engines(server)
        same = {first["metadata"]["uid"], second["metadata"]["uid"]}
        assert [one["spec"]["schedulingGates"] for one in (first, second)] == [[{"name": GATE}]] * 2
        assert not any(QUEUE in one["metadata"]["labels"] for one in objects(server, "deployments"))

        admit(api, first)
        poll("one counts", lambda: counted(server) == "1/2", 60)
        poll("it is said", lambda: condition(server, "EnginesReady")[:2] == ("True", "SomeSuspended"), 60)
        assert {one["metadata"]["uid"] for one in engines(server)} == same

        admit(api, second)
        poll("both count", lambda: counted(server) == "2/2", 60)
        assert {one["metadata"]["uid"] for one in engines(server)} == same


def admit(api: client.ApiClient, pod: Json) -> None:
    """As Kueue does when there is quota."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    gone = [{"op": "remove", "path": "/spec/schedulingGates"}]
    client.CoreV1Api(api).patch_namespaced_pod(name, namespace, gone)
