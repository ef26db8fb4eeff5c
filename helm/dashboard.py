"""Grafana's dashboard, from a list of panels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

_G, _S, _O = "aegaeon_gateway", "aegaeon_scheduler", "aegaeon_operator"
_SELECTED = 'namespace=~"$namespace", pool=~"$pool"'
_OF = f"{{{_SELECTED}}}"
_WIDTH, _HEIGHT = 8, 7


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph of a query. `unit`: Grafana's name of the unit."""

    title: str
    query: str
    legend: str
    unit: str = "short"


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{_OF}[1m]))"


def _quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, sum by (model, le) (rate({metric}_bucket{_OF}[1m])))"


_SENT, _MISSED = (_rate(f"{_G}_tokens_{kind}", "model") for kind in ("total", "missed_total"))
_DUE = f"({_SENT} + ({_MISSED} or 0 * {_SENT}))"  # gateways of the release before count no missed ones
_ON_TIME = f"{_rate(f'{_G}_tokens_on_time_total', 'model')} / {_DUE}"
# A pod's own `instance` is what Prometheus scraped; the scheduler's label of that name gets this one.
_ENGINE = "exported_instance"

_POOLS = (
    Panel("Tokens by their deadline", _ON_TIME, "{{model}}", "percentunit"),
    Panel("Time to the first token, p99", _quantile(0.99, f"{_G}_ttft_seconds"), "{{model}}", "s"),
    Panel("Time between tokens, p99", _quantile(0.99, f"{_G}_tbt_seconds"), "{{model}}", "s"),
    Panel("Output tokens a second", _rate(f"{_G}_tokens_total", "model"), "{{model}}"),
    Panel("Requests a second by outcome", _rate(f"{_G}_requests_total", "outcome"), "{{outcome}}", "reqps"),
    Panel("Open requests", f"sum by (model) ({_G}_open_streams{_OF})", "{{model}}"),
    Panel("Sequences waiting for prefill", f"sum by (model) ({_S}_queue{_OF})", "{{model}}"),
    Panel("Sequences on an engine", f"sum by ({_ENGINE}) ({_S}_sequences{_OF})", "{{exported_instance}}"),
    Panel("Tokens billed a second", _rate(f"{_G}_used_tokens_total", "tenant, kind"), "{{tenant}} {{kind}}"),
    Panel("Engines at work", _rate(f"{_S}_busy_seconds_total", _ENGINE), "{{exported_instance}}", "percentunit"),
    Panel("Engines switching", _rate(f"{_S}_switch_seconds_total", _ENGINE), "{{exported_instance}}", "percentunit"),
    Panel("Loads of weights a second", _rate(f"{_S}_model_loads_total", "model"), "{{model}}"),
)

# Panels of the operator itself, independent of the selected pool.
_OPERATOR = (
    Panel("Leader", f"max by (pod) ({_O}_leads)", "{{pod}}"),
    Panel(
        "Time of a reconcile, p99",
        f"histogram_quantile(0.99, sum by (pod, le) (rate({_O}_reconcile_seconds_bucket[5m])))",
        "{{pod}}",
        "s",
    ),
    Panel("Pools that wait for a worker", f"max by (pod) ({_O}_queue_length)", "{{pod}}"),
    Panel(
        "Time since the last reconcile without an error",
        f"time() - max by (namespace, pool) ({_O}_last_reconcile_timestamp_seconds{_OF})",
        "{{namespace}}/{{pool}}",
        "s",
    ),
    Panel(
        "Failed reconciles a second",
        f"sum by (namespace, pool, error) (rate({_O}_reconcile_errors_total{_OF}[5m]))",
        "{{namespace}}/{{pool}} {{error}}",
    ),
    Panel(
        "Objects that the API server refuses",
        f"max by (namespace, pool, kind) ({_O}_refused_objects{_OF})",
        "{{namespace}}/{{pool}} {{kind}}",
    ),
    Panel(
        "Calls of the API server a second",
        f"sum by (verb, resource, code) (rate({_O}_api_requests_total[5m]))",
        "{{verb}} {{resource}} {{code}}",
        "reqps",
    ),
    Panel(
        "Pods that are not ready",
        f"max by (namespace, pool, component) ({_O}_pods_wanted{_OF} - {_O}_pods_ready{_OF})",
        "{{namespace}}/{{pool}} {{component}}",
    ),
    Panel(
        "Certificates expire in",
        f"min by (namespace, pool, role) ({_O}_certificate_expiry_timestamp_seconds{_OF}) - time()",
        "{{namespace}}/{{pool}} {{role}}",
        "s",
    ),
)
ROWS = (("Pools", _POOLS), ("Operator", _OPERATOR))


def dashboard() -> dict[str, Any]:
    """Return the document that Grafana imports."""
    source = {"type": "prometheus", "uid": "${source}"}
    variables = [_variable(source, "namespace", f"{_S}_instances_up")]
    variables.append(_variable(source, "pool", f'{_S}_instances_up{{namespace=~"$namespace"}}'))
    return {
        "title": "Aegaeon",
        "uid": "aegaeon",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [{"name": "source", "type": "datasource", "query": "prometheus"}, *variables]},
        "panels": list(_panels(source)),
    }


def _variable(source: dict[str, str], label: str, metric: str) -> dict[str, Any]:
    """Return the variable of a label; `All` includes series without the label."""
    return {
        "name": label,
        "type": "query",
        "datasource": source,
        "query": f"label_values({metric}, {label})",
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def _panels(source: dict[str, str]) -> Iterator[dict[str, Any]]:
    """A heading for each row, and its panels below it, from left to right."""
    number, top = count(1), 0
    for title, panels in ROWS:
        yield {"id": next(number), "type": "row", "title": title, "gridPos": _place(0, top, 24, 1), "panels": []}
        for place, panel in enumerate(panels):
            line, column = divmod(place, 24 // _WIDTH)
            yield _panel(
                next(number), panel, _place(column * _WIDTH, top + 1 + line * _HEIGHT, _WIDTH, _HEIGHT), source
            )
        top += 1 + -(-len(panels) // (24 // _WIDTH)) * _HEIGHT


def _place(x: int, y: int, width: int, height: int) -> dict[str, int]:
    return {"x": x, "y": y, "w": width, "h": height}


def _panel(number: int, panel: Panel, place: dict[str, int], source: dict[str, str]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": panel.query, "legendFormat": panel.legend}],
    }
