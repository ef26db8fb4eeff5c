"""The chart and the examples in a cluster: removed whatever is there, and what is left of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.cluster import images
from e2e.cluster.layout import default_layout
from e2e.kubectl import CHART, helm, kubectl

SYSTEM = "aegaeon-system"
WHERE = ("--namespace", SYSTEM)
KINDS = ("gpupools.serving.aegaeon.io", "modelpools.serving.aegaeon.io")


@contextmanager
def with_redis(server: Path, chart: str = CHART) -> Iterator[None]:
    """The chart with a Redis, installed as a person would, for the time of a `with`. `chart`: a folder."""
    layout = default_layout()
    images.load(layout, [images.redis(layout)])
    # Other tests put the definitions there before.
    again = ("--create-namespace", "--take-ownership", "--force-conflicts")
    redis = ("--set", "redis.bundled=true", "--set", f"redis.image={images.REDIS}")
    helm(server, "upgrade", "--install", "aegaeon", chart, *WHERE, *again, *redis, "--wait", "--timeout=120s")
    try:
        yield
    finally:
        helm(server, "uninstall", "aegaeon", *WHERE, "--wait")


@contextmanager
def with_values(server: Path, *values: str) -> Iterator[None]:
    """The chart that is there with these values beside its own, for the time of a `with`."""
    sets = [word for one in values for word in ("--set", one)]
    wait = ("--wait", "--timeout=240s")
    helm(server, "upgrade", "aegaeon", CHART, *WHERE, "--reuse-values", *wait, *sets)
    try:
        yield
    finally:
        helm(server, "rollback", "aegaeon", *WHERE, *wait)


def remove(server: Path) -> None:
    """Whatever is there."""
    helm(server, "uninstall", "aegaeon", *WHERE, "--ignore-not-found", "--wait")
    for kind, *names in (("crd", *KINDS), ("namespace", SYSTEM), ("-n=default", "secret", "team-a-keys")):
        kubectl(server, "delete", kind, *names, "--ignore-not-found")


def left(server: Path) -> list[str]:
    """Objects of every kind that were made by the chart or the operator; events pass by themselves."""
    kinds = kubectl(server, "api-resources", "--verbs=list", "-o", "name").split()
    found = kubectl(server, "get", ",".join(set(kinds) - {"events", "events.events.k8s.io"}), "-A", "-o", "name")
    return [name for name in found.split() if "aegaeon" in name or "demo" in name]
