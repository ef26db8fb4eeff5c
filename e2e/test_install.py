"""An installation from an empty cluster to nothing: the examples, `helm test`, an upgrade under load, and its removal
by the words of docs/kubernetes.md. It runs before the tests that share an installation (see conftest.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import images
from e2e.cluster.layout import default_layout
from e2e.cluster.node import shared_files
from e2e.installation import SYSTEM, WHERE, left, remove
from e2e.kubectl import CHART, REPOSITORY, helm, kubectl
from e2e.load import Load
from e2e.page import commands, run_commands
from e2e.polling import poll
from e2e.pool import PodsOfPool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]
GUIDE = REPOSITORY / "docs/kubernetes.md"
KEY = "change-me-to-random-text"  # of examples/kubernetes/modelpool.yaml


@pytest.fixture(scope="module")
def installed(own_cluster: Path) -> Iterator[Path]:
    """The chart as it comes: what it says of images is where this cluster's are."""
    remove(own_cluster)  # what an earlier run left
    helm(own_cluster, "install", "aegaeon", CHART, *WHERE, "--create-namespace", "--wait", "--timeout=120s")
    yield own_cluster
    remove(own_cluster)


@pytest.fixture(scope="module")
def examples(installed: Path, models: Path) -> PodsOfPool:
    """Ready, in the namespace `default`."""
    pool = PodsOfPool(installed, "default", "demo")
    kubectl(installed, "apply", "-f", f"{REPOSITORY}/examples/kubernetes/")
    # Nodes of this cluster bring torch (e2e/cluster/node.py).
    pool.patch({"podTemplate": {"runtimeClassName": "torch"}})
    kubectl(installed, "wait", "--for=condition=Ready", "gpupool,modelpool", "--all", "--timeout=5m")
    return pool


def test_helm_test_chats_with_a_model(examples: PodsOfPool) -> None:
    kubectl(examples.kubeconfig, "-n", SYSTEM, "create", "secret", "generic", "tester", f"--from-literal=key={KEY}")
    url = "http://demo-gateway.default:8000"
    upgrade(examples, f"test.url={url}", "test.keySecret=tester")

    output = helm(examples.kubeconfig, "test", "aegaeon", *WHERE, "--logs")

    assert "llama answers: " in output


def test_an_upgrade_replaces_every_pod_and_no_request_fails(examples: PodsOfPool, models: Path) -> None:
    images.tag_product(default_layout(), "next")
    old = {pod.uid for pod in examples.pods()}
    with Load(examples.url, {"llama": KEY, "qwen3": KEY}, models) as load:
        load.wait_for_answers(2)
        upgrade(examples, "images.tag=next")
        examples.wait_until("every pod is a new one", lambda: not old & {pod.uid for pod in examples.pods()}, 180)
        for component, count in (("scheduler", 1), ("gateway", 2), ("engine", 2)):
            examples.wait_until_all_ready(component, count)
        load.wait_for_answers(4)

    load.check()
    assert len({pod.node for pod in examples.pods("gateway")}) == 2
    examples.wait_until_ready()


def test_uninstalling_by_the_guide_leaves_only_weights_in_the_nodes_memory(
    examples: PodsOfPool,
) -> None:
    server = examples.kubeconfig
    path = f"{default_layout().binaries}:{os.environ['PATH']}"
    run_commands(commands(GUIDE, "Upgrade, uninstall"), KUBECONFIG=str(server), PATH=path)
    kubectl(server, "-n", "default", "delete", "secret", "team-a-keys")
    poll("nothing is left", lambda: not left(server), 90)
    assert {file.suffix for file in shared_files(default_layout())} <= {".weights", ".known", ".lock"}


def upgrade(pool: PodsOfPool, *values: str) -> None:
    """With what was set before."""
    sets = [word for value in values for word in ("--set", value)]
    helm(pool.kubeconfig, "upgrade", "aegaeon", CHART, *WHERE, "--reuse-values", "--wait", "--timeout=120s", *sets)
