"""Grafana's dashboard, from a list of panels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_G, _S = "aegaeon_gateway", "aegaeon_scheduler"
_OF = '{namespace=~"$namespace"}'
_WIDTH, _HEIGHT = 8, 7


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph of one query. `unit` is Grafana's name of it."""

    title: str
    query: str
    legend: str
    unit: str = "short"


def _rate(metric: str, by: str) -> str:
    return f"sum by ({by}) (rate({metric}{_OF}[1m]))"


def _quantile(share: float, metric: str) -> str:
    return f"histogram_quantile({share}, sum by (model, le) (rate({metric}_bucket{_OF}[1m])))"


_ON_TIME = f"{_rate(f'{_G}_tokens_on_time_total', 'model')} / {_rate(f'{_G}_tokens_total', 'model')}"
# A pod's own `instance` is what Prometheus scraped; the scheduler's label of that name gets this one.
_ENGINE = "exported_instance"

PANELS = (
    Panel("Tokens by their deadline", _ON_TIME, "{{model}}", "percentunit"),
    Panel("Time to the first token, p99", _quantile(0.99, f"{_G}_ttft_seconds"), "{{model}}", "s"),
    Panel("Time between tokens, p99", _quantile(0.99, f"{_G}_tbt_seconds"), "{{model}}", "s"),
    Panel("Output tokens a second", _rate(f"{_G}_tokens_total", "model"), "{{model}}"),
    Panel("Requests a second by outcome", _rate(f"{_G}_requests_total", "outcome"), "{{outcome}}", "reqps"),
    Panel("Open requests", f"sum by (model) ({_G}_open_streams{_OF})", "{{model}}"),
    Panel("Sequences that wait for their prefill", f"sum by (model) ({_S}_queue{_OF})", "{{model}}"),
    Panel("Sequences on an engine", f"sum by ({_ENGINE}) ({_S}_sequences{_OF})", "{{exported_instance}}"),
    Panel("Tokens billed a second", _rate(f"{_G}_used_tokens_total", "tenant, kind"), "{{tenant}} {{kind}}"),
    Panel("Engines at work", _rate(f"{_S}_busy_seconds_total", _ENGINE), "{{exported_instance}}", "percentunit"),
    Panel("Engines switching", _rate(f"{_S}_switch_seconds_total", _ENGINE), "{{exported_instance}}", "percentunit"),
    Panel("Loads of weights a second", _rate(f"{_S}_model_loads_total", "model"), "{{model}}"),
)


def dashboard() -> dict[str, Any]:
    """The document that Grafana imports."""
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "title": "Aegaeon",
        "uid": "aegaeon",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus"},
                {
                    "name": "namespace",
                    "type": "query",
                    "datasource": source,
                    "query": f"label_values({_S}_instances_up, namespace)",
                    "includeAll": True,
                    "multi": True,
                    "current": {"text": "All", "value": "$__all"},
                },
            ]
        },
        "panels": [_panel(number, panel, source) for number, panel in enumerate(PANELS)],
    }


def _panel(number: int, panel: Panel, source: dict[str, str]) -> dict[str, Any]:
    row, column = divmod(number, 24 // _WIDTH)
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [{"refId": "A", "expr": panel.query, "legendFormat": panel.legend}],
    }
