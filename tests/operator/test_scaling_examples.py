"""The examples for KEDA and HorizontalPodAutoscalers scale what there is, by series that schedulers have."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.scaling_queries import example, scaling_query

from aegaeon_operator.spec.crd import definitions
from aegaeon_operator.spec.resources import API_VERSION
from aegaeon_scheduler.core.domain import ModelName
from aegaeon_scheduler.core.snapshot import ModelView, Snapshot
from aegaeon_scheduler.service.metrics import PoolMetrics


@pytest.mark.parametrize("name", ["keda.yaml", "hpa.yaml"])
def test_they_scale_gpu_pools_by_the_scale_subresource(name: str) -> None:
    target = example(name)["spec"]["scaleTargetRef"]
    (version,) = definitions()["gpupools"]["spec"]["versions"]
    assert (target["apiVersion"], target["kind"]) == (API_VERSION, "GpuPool")
    assert version["subresources"]["scale"]["specReplicasPath"] == ".spec.engines.replicas"


def test_the_metric_of_the_autoscaler_is_the_one_that_the_adapter_makes() -> None:
    (rule,) = example("prometheus-adapter.yaml")["rules"]["external"]
    metric = example("hpa.yaml")["spec"]["metrics"][0]["external"]["metric"]
    assert metric["name"] == rule["name"]["as"]


@pytest.mark.parametrize("name", ["keda.yaml", "prometheus-adapter.yaml"])
def test_schedulers_have_the_series_that_the_queries_name(name: str) -> None:
    model = ModelView(ModelName("m"), 1, 2, 0, 0, 0, 0, 0.0, 0.0, 0.0)
    registry = CollectorRegistry()
    registry.register(PoolMetrics(lambda: Snapshot(0.0, "aegaeon", (), (model,), (), ()), ()))
    text = generate_latest(registry).decode()
    there = {family.name for family in text_string_to_metric_families(text)}
    named = set(re.findall(r"aegaeon_\w+", scaling_query(name, "a", "demo")))
    assert named == {"aegaeon_scheduler_queue", "aegaeon_scheduler_running"}
    assert named <= there
