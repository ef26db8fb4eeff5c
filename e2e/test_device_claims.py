"""Engines that get devices by resource claims on real nodes: the scheduler allocates, kubelets have a driver prepare.

containerd 1.6, which Debian 12 has, does not know CDI: nothing of a device would show in a container, so the driver
names no CDI devices.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from e2e.chaos.containers import kill, processes
from e2e.chaos.view import View
from e2e.claims.driver import Driver, driving
from e2e.claims.manifests import CLAIMS, RESOURCES, allocated, claim_template, device_class, devices_of
from e2e.cluster.layout import Layout
from e2e.kubectl import kubectl, kubectl_aegaeon
from e2e.load import Load
from e2e.manifests import RED, engine_pods, gpu_pool, keys, model_pool
from e2e.pool import PodsOfPool, a_pool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]
MODELS = {"llama": RED, "qwen2": RED}
REFUSAL = "the device has not been reset yet"
Drivers = dict[str, Driver]


@pytest.fixture(scope="module")
def drivers(api: client.ApiClient, nodes: Layout) -> Iterator[Drivers]:
    """By node, with one device each, which they do not prepare yet."""
    objects = [device_class(), *(devices_of(node.name, 1) for node in nodes.nodes)]
    published = "\n---\n".join(map(json.dumps, objects))
    with ExitStack() as stack:
        found = {node.name: stack.enter_context(driving(api, node)) for node in nodes.nodes}
        for driver in found.values():
            driver.refusal = REFUSAL
        kubectl(nodes.kubeconfig, "apply", "-f", "-", stdin=published)
        yield found
        kubectl(nodes.kubeconfig, "delete", "--ignore-not-found", "-f", "-", stdin=published)


@pytest.fixture(scope="module")
def claiming(release: str, own_cluster: Path, drivers: Drivers, models: Path) -> Iterator[PodsOfPool]:
    """An engine for each device."""
    template: dict[str, Any] = engine_pods("torch")
    template["resourceClaims"] = CLAIMS
    template["resources"] |= RESOURCES
    spec: dict[str, Any] = {"engines": {"replicas": len(drivers)}, "gateway": {"replicas": 1}}
    with a_pool(own_cluster, "aegaeon-claims", gpu_pool(podTemplate=template, **spec)) as made:
        made.apply(claim_template(), keys("red", RED), model_pool("red", [*MODELS]))
        yield made


def test_engines_start_once_a_driver_has_prepared_their_claims(
    claiming: PodsOfPool, drivers: Drivers, models: Path
) -> None:
    message = "jsonpath={.status.conditions[?(@.type=='EnginesReady')].message}"

    def refused() -> bool:
        return REFUSAL in claiming.kubectl("get", "gpupool", claiming.name, "-o", message)

    claiming.wait_until("the status says why engines do not start", refused, 120)
    assert not any(pod.ready for pod in claiming.pods("engine"))

    for driver in drivers.values():
        driver.refusal = ""
    claiming.wait_until_all_ready("engine", len(drivers), 240)

    assert allocated(claims(claiming)) == {pod.name: pod.node for pod in claiming.pods("engine")}
    assert prepared(drivers) == sorted(one["metadata"]["uid"] for one in claims(claiming))
    assert [list(driver.prepared.values()) for driver in drivers.values()] == [["gpu-0"]] * len(drivers)
    with Load(claiming.url, MODELS, models) as load:
        load.wait_for_answers(6)
    load.check()


def test_a_container_that_is_started_again_keeps_its_claim_and_what_it_said_is_still_read(
    claiming: PodsOfPool, drivers: Drivers, nodes: Layout, release: str
) -> None:
    before = prepared(drivers)
    # Of two engines one may never have loaded the model, and names it nowhere.
    found = [(pod, lines_of(claiming, pod.name)) for pod in claiming.pods("engine")]
    pod, said = max(found, key=lambda one: len(one[1]))
    assert said

    with closing(View(claiming.kubeconfig, nodes, claiming.namespace, release)) as view:
        seen = next(one for one in view.of("engine") if one.name == pod.name)
        kill(processes(view.node(seen.node), seen)[0])

    def again() -> bool:
        return any(one.uid == pod.uid and one.restarts == 1 and one.ready for one in claiming.pods("engine"))

    claiming.wait_until("the same pod runs again", again, 120)
    assert prepared(drivers) == before
    claiming.wait_until("the new container names the model, too", lambda: len(lines_of(claiming, pod.name)) > len(said))
    assert lines_of(claiming, pod.name)[: len(said)] == said
    assert said[0] not in claiming.kubectl("logs", pod.name, "--timestamps")


def test_the_claim_of_an_engine_that_is_removed_is_given_back(claiming: PodsOfPool, drivers: Drivers) -> None:
    claiming.patch({"engines": {"replicas": 1}})
    claiming.wait_until("one claim is left", lambda: len(claims(claiming)) == 1, 120)
    claiming.wait_until("a driver has undone the other", lambda: len(prepared(drivers)) == 1, 60)
    assert prepared(drivers) == [one["metadata"]["uid"] for one in claims(claiming)]


def claims(pool: PodsOfPool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(pool.kubectl("get", "resourceclaims", "-o", "json"))["items"]
    return found


def prepared(drivers: Drivers) -> list[str]:
    """The uids of claims, of all nodes."""
    return sorted(uid for driver in drivers.values() for uid in driver.prepared)


def lines_of(pool: PodsOfPool, pod: str) -> list[str]:
    """What `kubectl aegaeon logs llama` has of a pod, as `kubectl logs --timestamps` prints it."""
    process = kubectl_aegaeon(pool.kubeconfig, "logs", "llama", "-n", pool.namespace)
    said, complaint = process.communicate(timeout=120)
    assert (process.returncode, complaint) == (0, ""), said
    found = [line.split(" ", 2) for line in said.splitlines()]
    return [f"{time} {text}" for time, name, text in found if name == pod]
