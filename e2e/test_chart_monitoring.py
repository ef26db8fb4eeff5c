"""Alerts and dashboard in a real Prometheus: alerts fire when they should and not before, every panel has a graph."""

from __future__ import annotations

import json
import subprocess
import urllib.parse
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server
from tests.scaling_queries import scaling_query

from aegaeon_cli.demo import clients
from aegaeon_gateway.metrics import Metrics
from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.metrics import Metrics as OperatorMetrics
from aegaeon_operator.reconcile.cluster.facts import Key
from aegaeon_operator.reconcile.cluster.figures import PodCount, PoolFigures, Readiness
from aegaeon_scheduler.core.domain import InstanceId, Memory, ModelName, Role
from aegaeon_scheduler.core.snapshot import InstanceView, ModelView, Snapshot
from aegaeon_scheduler.service.metrics import PoolMetrics
from e2e.alert_cases import CASES, of_the_operator, series
from e2e.cluster.binaries import find
from e2e.envoy import free_ports
from e2e.kubectl import REPOSITORY
from e2e.polling import poll

FILES = REPOSITORY / "helm" / "aegaeon" / "files"
MODEL = ModelName("m")
RULES = FILES / "rules.yaml"
PANELS = [one for one in json.loads((FILES / "dashboard.json").read_bytes())["panels"] if one["type"] != "row"]


def binary(name: str) -> Path:
    """One that `make monitoring` has built."""
    found = find(name)
    if found is None:  # building takes too long for every run, so there is a target of its own
        pytest.skip(f"{name} is not built; `make monitoring` does (ten minutes and more, once)")
    return found


@pytest.fixture(scope="module")
def promtool() -> Path:
    """The tool that checks rules."""
    return binary("promtool")


def rules() -> dict[str, dict[str, Any]]:
    """The alerts by name."""
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_promtool_accepts_the_rules(promtool: Path) -> None:
    checked = subprocess.run(
        [promtool, "check", "rules", "--lint=all", "--lint-fatal", RULES],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_every_alert_has_a_case() -> None:
    assert set(CASES) == set(rules())


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_when_it_should_and_not_before(promtool: Path, tmp_path: Path, alert: str) -> None:
    case = CASES[alert]
    firing = [fired(alert, case.labels, case.summary)]
    run_promtool(promtool, tmp_path, case.series, [(alert, case.silent, []), (alert, case.fires, firing)])


def fired(alert: str, labels: dict[str, str], summary: str) -> dict[str, Any]:
    """As promtool expects it."""
    annotations = {"summary": summary, "description": rules()[alert]["annotations"]["description"]}
    return {"exp_labels": labels, "exp_annotations": annotations}


@pytest.mark.parametrize("alert", [name for name, case in CASES.items() if "pool" in case.labels])
def test_two_pools_of_one_namespace_are_two_alerts(promtool: Path, tmp_path: Path, alert: str) -> None:
    case = CASES[alert]

    def of_other(text: str) -> str:
        return text.replace("demo", "other")

    both = case.series | {of_other(name): values for name, values in case.series.items()}
    others = {name: of_other(value) for name, value in case.labels.items()}
    firing = [fired(alert, case.labels, case.summary), fired(alert, others, of_other(case.summary))]
    run_promtool(promtool, tmp_path, both, [(alert, case.fires, firing)])


def test_tokens_that_never_came_are_late_ones(promtool: Path, tmp_path: Path) -> None:
    alert = "AegaeonTokensLate"
    case = CASES[alert]
    of_one = next(name for name in case.series if "tokens_on_time" in name)
    kinds = ("on_time_total", "total", "missed_total")
    missed = {of_one.replace("on_time_total", kind): "0+600x40" for kind in kinds}
    missed |= {name.replace('"m"', '"n"'): values for name, values in missed.items() if "missed" not in name}
    run_promtool(promtool, tmp_path, missed, [(alert, case.fires, [fired(alert, case.labels, case.summary)])])


def test_no_operator_that_is_scraped_is_an_operator_that_is_down(promtool: Path, tmp_path: Path) -> None:
    case = CASES["AegaeonOperatorDown"]
    firing = [fired("AegaeonOperatorDown", {"severity": "critical"}, case.summary)]
    run_promtool(promtool, tmp_path, {"up": "1x30"}, [("AegaeonOperatorDown", 6, firing)])


def test_a_pool_without_replicas_of_gateways_lacks_none(promtool: Path, tmp_path: Path) -> None:
    none = {of_the_operator(metric, component="gateway"): "0x30" for metric in ("pods_wanted", "pods_ready")}
    run_promtool(promtool, tmp_path, none, [("AegaeonNoGateways", 20, [])])


@pytest.mark.parametrize("reason", ["NoEngines", "NoGateways", "Suspended"])
def test_a_pool_that_does_not_serve_on_purpose_is_not_critical(promtool: Path, tmp_path: Path, reason: str) -> None:
    given = {of_the_operator("ready", kind="GpuPool", name="demo", reason=reason): "0x40"}
    if reason != "NoGateways":
        given[scheduler_of("instances_up")] = "0x40"
    run_promtool(promtool, tmp_path, given, [("AegaeonPoolNotReady", 30, []), ("AegaeonNoEngines", 30, [])])


def run_promtool(
    promtool: Path, tmp_path: Path, given: dict[str, str], expected: list[tuple[str, int, list[dict[str, Any]]]]
) -> None:
    """Series as promtool writes them; alert, minute, and what fires then."""
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in given.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": alert, "exp_alerts": alerts} for alert, minute, alerts in expected
        ],
    }
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}), "utf-8")
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def scheduler_of(metric: str, **labels: str) -> str:
    return series(f"scheduler_{metric}", pod="scheduler", **labels)


@pytest.mark.parametrize(("waiting", "fires"), [("0x30", False), ("3x30", True)])
def test_a_pool_that_scales_to_zero_has_no_engines_without_an_alarm_until_requests_wait(
    promtool: Path, tmp_path: Path, waiting: str, fires: bool
) -> None:
    case = CASES["AegaeonNoEngines"]
    given = {
        scheduler_of("instances_up"): "0x30",
        scheduler_of("start_hold_seconds"): "600x30",
        scheduler_of("queue", model="m"): waiting,
        scheduler_of("queue", model="other"): "0x30",
    }
    expected = [fired("AegaeonNoEngines", case.labels, case.summary)] if fires else []
    run_promtool(promtool, tmp_path, given, [("AegaeonNoEngines", 10, expected)])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One that scrapes what gateways and schedulers expose, with labels as a PodMonitor gives them. Yields its URL."""
    program, folder = binary("prometheus"), tmp_path_factory.mktemp("prometheus")
    gateway, scheduler, operator, port = free_ports(4)
    servers = [exposed_by_a_gateway(gateway), exposed_by_a_scheduler(scheduler), exposed_by_an_operator(operator)]
    labels = {"namespace": "demo", "pool": "demo", "app_kubernetes_io_instance": "demo"}
    targets = {"targets": [f"127.0.0.1:{gateway}", f"127.0.0.1:{scheduler}"], "labels": labels}
    operators = {"targets": [f"127.0.0.1:{operator}"], "labels": {"namespace": "system", "pod": "operator-0"}}
    config = {
        "global": {"scrape_interval": "500ms", "evaluation_interval": "500ms"},
        "rule_files": [str(RULES)],
        "scrape_configs": [
            {"job_name": "aegaeon", "static_configs": [targets]},
            {"job_name": "operator", "static_configs": [operators], "honor_labels": True},
        ],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
    flags = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    flags += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
    server = subprocess.Popen([program, *flags])
    yield f"http://127.0.0.1:{port}"
    server.terminate()
    server.wait(20)
    for http, thread in servers:
        http.shutdown()
        http.server_close()
        thread.join()


def exposed_by_a_gateway(port: int) -> Any:
    metrics = Metrics()
    model = metrics.of("m")
    metrics.scheduler_up.set(1)
    for first in (True, False):
        model.token(gap_s=0.05, first=first, on_time=True)
    model.ended("ok")
    model.used("team", 3, 2)
    return start_http_server(port, "127.0.0.1", registry=metrics.registry)


def exposed_by_a_scheduler(port: int) -> Any:
    ticks = count()

    def snapshot() -> Snapshot:
        """A pool that works: its totals grow with every look."""
        n = next(ticks)
        engine = InstanceView(
            InstanceId("e-0"), Role.UNIFIED, "cpu", (MODEL,), "m", "", 4, Memory(1, 1), 1, n, n, n, n, n, n, n, ""
        )
        model = ModelView(MODEL, 1, 1, n, n, n, n, n, n, n)
        return Snapshot(float(n), "aegaeon", (engine,), (model,), (), ())

    registry = CollectorRegistry()
    registry.register(PoolMetrics(snapshot, ("e-0",)))
    return start_http_server(port, "127.0.0.1", registry=registry)


def exposed_by_an_operator(port: int) -> Any:
    """A leader: a pool whose certificates were issued, which lacks an engine, and a call that was refused."""
    metrics, key = OperatorMetrics(), Key("demo", "demo")
    metrics.leads.set(1)
    found = PoolFigures(
        (Readiness("GpuPool", *key, False, "PodsStarting"),), (PodCount("engine", 2, 1),), {"Service": 1}
    )
    with metrics.look(key):
        metrics.seen(key, found, {"engine": datetime.now(UTC) + timedelta(days=90)})
    with pytest.raises(KubeError), metrics.look(key):
        raise KubeError(0, "the API server does not answer")
    metrics.called("PATCH", "/api/v1/namespaces/demo/services/demo", 403, 0.01)
    return start_http_server(port, "127.0.0.1", registry=metrics.registry)


def ask(url: str, path: str, **query: str) -> Any:
    """A call of its API; None while it does not answer."""
    try:
        return json.loads(clients.page(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}", 5))["data"]
    except OSError:
        return None


def test_a_prometheus_loads_the_rules(prometheus: str) -> None:
    loaded = poll("rules are loaded", lambda: ask(prometheus, "rules"), 90)
    assert {rule["name"] for group in loaded["groups"] for rule in group["rules"]} == set(rules())


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_every_panel_shows_what_its_legend_says(prometheus: str, panel: dict[str, Any]) -> None:
    (target,) = panel["targets"]
    query = target["expr"].replace("$namespace", ".*").replace("$pool", ".*")

    def result() -> list[Any]:  # a rate needs two scrapes
        found: list[Any] = (ask(prometheus, "query", query=query) or {}).get("result", [])
        return found

    (first, *_) = poll("a series", result, 90)
    named = [word for word in first["metric"] if f"{{{{{word}}}}}" in target["legendFormat"]]
    assert len(named) == target["legendFormat"].count("{{")


@pytest.mark.parametrize("example", ["keda.yaml", "prometheus-adapter.yaml"])
def test_the_queries_of_the_autoscaling_examples_have_one_value(prometheus: str, example: str) -> None:
    """KEDA asks /api/v1/query and takes a vector of one element alone, prometheus-adapter adds them up."""
    query = scaling_query(example, namespace="demo", pool="demo")

    def result() -> list[Any]:
        found: list[Any] = (ask(prometheus, "query", query=query) or {}).get("result", [])
        return found

    (only,) = poll("a value", result, 90)
    assert float(only["value"][1]) == 2, "one sequence waits, one runs"
