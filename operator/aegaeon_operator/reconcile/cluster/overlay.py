"""Applies a GpuPool's pod template to pods: placement, environment, containers, volumes, resource claims.

The operator's own containers, rules and mounts stay, and come first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel

from aegaeon_operator.reconcile.cluster.facts import Json
from aegaeon_operator.reconcile.cluster.template import CONFINED
from aegaeon_operator.spec.pods import PodTemplate
from aegaeon_operator.spec.pods.containers import Container
from aegaeon_operator.spec.pods.placement import Spread


def apply_template(template: Json, overlay: PodTemplate, peers: Json) -> Json:
    """Apply a template to a pod whose first container is the pool's own. `peers`: labels of the component's pods."""
    pod = template["spec"]
    own, policy = pod["containers"][0], pod["containers"][0]["imagePullPolicy"]
    _extend(own, "env", _written(overlay.env))
    _extend(own, "volumeMounts", _written(overlay.volume_mounts))
    _extend(pod, "containers", [_additional(container, policy) for container in overlay.containers])
    _extend(pod, "initContainers", [_additional(container, policy) for container in overlay.init_containers])
    _extend(pod, "volumes", _written(overlay.volumes))
    _extend(pod, "resourceClaims", _written(overlay.resource_claims))
    if overlay.affinity:
        pod["affinity"] = _both(pod.get("affinity", {}), _as_written(overlay.affinity))
    if overlay.topology_spread_constraints:
        pod["topologySpreadConstraints"] = _spread(pod, overlay.topology_spread_constraints, peers)
    return template


def _extend(manifest: Json, name: str, items: list[Json]) -> None:
    if items:
        manifest[name] = [*manifest.get(name, ()), *items]


def _additional(container: Container, policy: str) -> Json:
    """Return a container with the restrictions of the pool's own container."""
    return {"imagePullPolicy": policy, **_as_written(container), "securityContext": CONFINED}


def _spread(pod: Json, constraints: Iterable[Spread], peers: Json) -> list[Json]:
    """Return the constraints of both: Kubernetes allows one per topology key, so the template's replaces the pod's."""
    more = [{"labelSelector": {"matchLabels": peers}, **_as_written(constraint)} for constraint in constraints]
    keys = {constraint["topologyKey"] for constraint in more}
    own = [entry for entry in pod.get("topologySpreadConstraints", ()) if entry["topologyKey"] not in keys]
    return [*own, *more]


def _both(own: Json, more: Json) -> Json:
    """Merge rules recursively; lists are concatenated."""
    merged = dict(own)
    for name, value in more.items():
        before = merged.get(name)
        if isinstance(before, dict):
            merged[name] = _both(before, value)
        else:
            merged[name] = [*before, *value] if isinstance(before, list) else value
    return merged


def _written(models: Iterable[BaseModel]) -> list[Json]:
    return [_as_written(model) for model in models]


def _as_written(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
