"""Alerts and dashboard of the chart ask for metrics that there are, with labels that they have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from aegaeon_gateway.metrics import Metrics
from aegaeon_operator.kube.metrics import Metrics as OperatorMetrics
from aegaeon_scheduler.core.snapshot import Snapshot
from aegaeon_scheduler.service.lag import SchedulerLoad
from aegaeon_scheduler.service.metrics import EventMetrics, LoadMetrics, PoolMetrics, process_registry

FILES = Path(__file__).parents[2] / "helm" / "aegaeon" / "files"
_METRIC = re.compile(r"aegaeon_(?:gateway|scheduler|operator)_[a-z_]+")


def test_every_alert_asks_for_metrics_that_there_are() -> None:
    rules = [
        rule for group in yaml.safe_load((FILES / "rules.yaml").read_text("utf-8"))["groups"] for rule in group["rules"]
    ]

    asked = {name for rule in rules for name in _METRIC.findall(rule["expr"])}

    assert asked
    assert asked - exposed() == set()


def test_every_panel_asks_for_metrics_that_there_are() -> None:
    panels = json.loads((FILES / "dashboard.json").read_bytes())["panels"]

    asked = {
        name for panel in panels for target in panel.get("targets", ()) for name in _METRIC.findall(target["expr"])
    }

    assert asked
    assert asked - exposed() == set()


@pytest.mark.parametrize("field", ["summary", "description"])
def test_every_alert_has_a_summary_and_a_remedy(field: str) -> None:
    groups = yaml.safe_load((FILES / "rules.yaml").read_text("utf-8"))["groups"]

    assert all(rule["annotations"][field] for group in groups for rule in group["rules"])


def exposed() -> set[str]:
    """Names as Prometheus knows them."""
    registry = process_registry()
    EventMetrics(registry)
    empty = Snapshot(0.0, "aegaeon", (), (), (), ())
    collectors: tuple[Collector | CollectorRegistry, ...] = (
        registry,
        Metrics().registry,
        PoolMetrics(lambda: empty, ()),
        LoadMetrics(SchedulerLoad),
        OperatorMetrics().registry,
    )
    families = [family for collector in collectors for family in collector.collect()]
    suffixes = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
    return {family.name + suffix for family in families for suffix in suffixes[family.type]}
