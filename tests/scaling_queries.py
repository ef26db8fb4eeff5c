"""The queries of examples/autoscaling, as the adapters put them to Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).parents[1] / "examples" / "autoscaling"


def example(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text("utf-8"))
    return found


def scaling_query(name: str, namespace: str, pool: str) -> str:
    """KEDA takes it as it is; prometheus-adapter fills a template in with the selector and the namespace."""
    if name == "keda.yaml":
        query = str(example(name)["spec"]["triggers"][0]["metadata"]["query"])
        return query.replace('namespace="default"', f'namespace="{namespace}"').replace('="demo"}', f'="{pool}"}}')
    (rule,) = example(name)["rules"]["external"]
    (label,) = example("hpa.yaml")["spec"]["metrics"][0]["external"]["metric"]["selector"]["matchLabels"]
    return str(rule["metricsQuery"]).replace("<<.LabelMatchers>>", f'{label}="{pool}",namespace="{namespace}"')
