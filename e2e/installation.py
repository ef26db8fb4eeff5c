"""The chart and the examples in a cluster: removed whatever is there, and what is left of them."""

from __future__ import annotations

from pathlib import Path

from e2e.kubectl import helm, kubectl

SYSTEM = "aegaeon-system"
WHERE = ("--namespace", SYSTEM)
KINDS = ("gpupools.serving.aegaeon.io", "modelpools.serving.aegaeon.io")


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
