"""examples/autoscaling/hpa.yaml as it stands: Kubernetes scales a GpuPool by it, as by the object that KEDA makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes import client

from e2e.cluster.layout import Layout
from e2e.external_metrics import Metric, serving
from e2e.kubectl import REPOSITORY, in_namespace, kubectl
from e2e.operating import accepted, apply, operator, pool
from e2e.polling import poll

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300, func_only=True)]
EXAMPLE = REPOSITORY / "examples" / "autoscaling" / "hpa.yaml"
# As prometheus-adapter makes it of the schedulers' series, and as the example asks for it.
METRIC, SELECTOR = "aegaeon_open_sequences", "app_kubernetes_io_instance=demo"
PERIOD_S = 60  # the controller looks every 15 s, and waits with scaling in for as long as the test says


@pytest.fixture
def metric(kubeconfig: Path, control_plane: Layout, api: client.ApiClient, tmp_path: Path) -> Iterator[Metric]:
    """What the autoscaler sees. GpuPool demo is where the example expects it, with an operator; no node takes a pod."""
    del api  # the definitions are there
    own = in_namespace(kubeconfig, "default", tmp_path)
    nowhere = {"nodeSelector": {"kubernetes.io/hostname": "node-that-is-not-there"}}
    shown = Metric(METRIC, SELECTOR)
    with serving(own, control_plane, shown, tmp_path), operator(own):
        apply(own, pool("demo", engines={"replicas": 1}, podTemplate=nowhere, controlPodTemplate=nowhere))
        poll("the operator has seen it", lambda: accepted(own, "gpupools") == 1, 60)
        yield shown
        kubectl(own, "delete", "hpa/demo-engines", "gpool/demo", "--ignore-not-found")


def test_the_autoscaler_of_the_example_scales_engines_by_open_sequences(kubeconfig: Path, metric: Metric) -> None:
    metric.value = 17
    kubectl(kubeconfig, "apply", "-f", str(EXAMPLE))
    poll("17 sequences, eight an engine: three", lambda: engines(kubeconfig) == 3, PERIOD_S, lambda: said(kubeconfig))
    metric.value = 80
    poll("no more than maxReplicas", lambda: engines(kubeconfig) == 4, PERIOD_S, lambda: said(kubeconfig))
    assert metric.asked > 0


def engines(kubeconfig: Path) -> int:
    return int(kubectl(kubeconfig, "-n", "default", "get", "gpool", "demo", "-o", "jsonpath={.spec.engines.replicas}"))


def said(kubeconfig: Path) -> str:
    return kubectl(kubeconfig, "-n", "default", "describe", "hpa", "demo-engines")
