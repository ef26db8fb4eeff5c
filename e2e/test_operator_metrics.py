"""What operators on a real API server tell Prometheus: who leads, what was reconciled, what the API server refused."""

from __future__ import annotations

import json
import time
import urllib.error
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aegaeon_cli.demo import clients
from e2e.envoy import free_ports
from e2e.kubectl import kubectl
from e2e.operating import accepted, apply, killed_operator, models, namespace_of, objects, pool
from e2e.polling import poll

pytestmark = pytest.mark.cluster

Labels = dict[str, str]


def scrape(port: int, name: str) -> list[tuple[Labels, float]]:
    """The series of one metric; none while the port is closed."""
    try:
        families = list(text_string_to_metric_families(clients.page(f"http://127.0.0.1:{port}/metrics", 5)))
    except (urllib.error.URLError, ConnectionError):
        return []
    samples = [one for family in families for one in family.samples]
    return [(one.labels, one.value) for one in samples if one.name == f"aegaeon_operator_{name}"]


def leads(port: int) -> list[float]:
    return [value for _, value in scrape(port, "leads")]


def test_one_of_two_leads_and_it_alone_knows_the_pools(namespaced: Path) -> None:
    first, second = free_ports(2)
    namespace = namespace_of(namespaced)
    apply(namespaced, pool("demo", engines={"replicas": 2}), models("red", "demo", "llama"))
    with ExitStack() as stack:
        operators = ExitStack()
        stack.enter_context(operators)
        operators.enter_context(killed_operator(namespaced, "first", first))
        poll("it leads", lambda: leads(first) == [1.0], 90)
        stack.enter_context(killed_operator(namespaced, "second", second))
        poll("both are accepted", lambda: accepted(namespaced, "gpupools,modelpools") == 2, 60)
        poll("the other stands by", lambda: leads(second) == [0.0], 90)

        (looked,) = poll("a look", lambda: scrape(first, "last_reconcile_timestamp_seconds"), 90)
        assert looked[0] == {"namespace": namespace, "pool": "demo"}
        assert abs(time.time() - looked[1]) < 60
        assert not scrape(second, "last_reconcile_timestamp_seconds")
        wanted = {labels["component"]: value for labels, value in scrape(first, "pods_wanted")}
        assert (wanted["engine"], wanted["scheduler"], wanted["standby"]) == (2, 1, 0)
        calls = {(one["verb"], one["resource"], one["code"]) for one, _ in scrape(first, "api_requests_total")}
        assert {
            ("list", "gpupools", "200"),
            ("patch", "deployments", "201"),
            ("patch", "gpupools/status", "200"),
        } <= calls
        assert sum(value for _, value in scrape(first, "watch_events_total")) > 0
        assert [value for _, value in scrape(first, "queue_length")] == [0.0]

        operators.close()  # it is killed, and does not release its Lease
        poll("the other one leads", lambda: leads(second) == [1.0], 60)
        poll("and knows the pool", lambda: scrape(second, "last_reconcile_timestamp_seconds"), 60)


def test_what_the_api_server_refuses_is_counted_by_kind_and_a_deleted_pool_leaves_nothing(namespaced: Path) -> None:
    (port,) = free_ports(1)
    hard = {"hard": {"count/statefulsets.apps": "0"}}
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "no-engines"}, "spec": hard}
    kubectl(namespaced, "apply", "-f", "-", stdin=json.dumps(quota))
    poll("it is in force", lambda: all(one["status"].get("used") for one in objects(namespaced, "quota")), 90)
    apply(namespaced, pool("demo", engines={"replicas": 1}))
    with killed_operator(namespaced, "one", port):
        ((labels, count),) = poll("a refusal", lambda: scrape(port, "refused_objects"), 60)
        assert (labels["pool"], labels["kind"], count) == ("demo", "StatefulSet", 1.0)
        codes = {one["code"] for one, _ in scrape(port, "api_requests_total") if one["resource"] == "statefulsets"}
        assert "403" in codes
        kubectl(namespaced, "delete", "gpool", "demo")
        poll("no series is left of it", lambda: not scrape(port, "ready"), 60)
