"""What a GpuPool lays over its pods: placement, environment, containers, volumes, resource claims.

Where it says nothing, a pod is as it is without it. The operator's own containers, rules and mounts stay first.
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


def lay_over(template: Json, overlay: PodTemplate, peers: Json) -> Json:
    """The template of a pod whose first container is the pool's own. `peers`: labels of the component's pods."""
    pod = template["spec"]
    own, policy = pod["containers"][0], pod["containers"][0]["imagePullPolicy"]
    _extend(own, "env", _written(overlay.env))
    _extend(own, "volumeMounts", _written(overlay.volume_mounts))
    _extend(pod, "containers", [_beside(one, policy) for one in overlay.containers])
    _extend(pod, "initContainers", [_beside(one, policy) for one in overlay.init_containers])
    _extend(pod, "volumes", _written(overlay.volumes))
    _extend(pod, "resourceClaims", _written(overlay.resource_claims))
    if overlay.affinity:
        pod["affinity"] = _both(pod.get("affinity", {}), _as_written(overlay.affinity))
    if overlay.topology_spread_constraints:
        pod["topologySpreadConstraints"] = _spread(pod, overlay.topology_spread_constraints, peers)
    return template


def _extend(whole: Json, name: str, items: list[Json]) -> None:
    if items:
        whole[name] = [*whole.get(name, ()), *items]


def _beside(one: Container, policy: str) -> Json:
    """Confined as the pool's own container is."""
    return {"imagePullPolicy": policy, **_as_written(one), "securityContext": CONFINED}


def _spread(pod: Json, given: Iterable[Spread], peers: Json) -> list[Json]:
    """Kubernetes takes one of a topology key: the overlay's replaces the operator's."""
    more = [{"labelSelector": {"matchLabels": peers}, **_as_written(one)} for one in given]
    keys = {one["topologyKey"] for one in more}
    return [*(one for one in pod.get("topologySpreadConstraints", ()) if one["topologyKey"] not in keys), *more]


def _both(own: Json, more: Json) -> Json:
    """Rules of both: of a list, the items of either."""
    found = dict(own)
    for name, value in more.items():
        before = found.get(name)
        if isinstance(before, dict):
            found[name] = _both(before, value)
        else:
            found[name] = [*before, *value] if isinstance(before, list) else value
    return found


def _written(models: Iterable[BaseModel]) -> list[Json]:
    return [_as_written(one) for one in models]


def _as_written(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
