"""Keeps the operator's replicas on different nodes, so that a standby can take over when the leader's node is lost."""

from __future__ import annotations

import asyncio
import logging

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import PODS, Cluster
from aegaeon_operator.kube.relocation import Relocations
from aegaeon_operator.reconcile.cluster.facts import Json
from aegaeon_operator.reconcile.cluster.pod_state import is_ready

_log = logging.getLogger(__name__)
EVERY_S = 20.0
_HASH = "pod-template-hash"


async def keep_apart(cluster: Cluster, relocations: Relocations, namespace: str, name: str) -> None:
    """Move a standby off the leader's node, repeatedly until cancelled. `name`: this process's pod."""
    before = ""
    while True:
        try:
            standby = await to_move(cluster, namespace, name)
            reason = await relocations.consider("operator", standby) if standby else ""
            if standby and reason and reason != before:
                _log.warning("both replicas of the operator are on node %s: %s", standby["spec"]["nodeName"], reason)
            before = reason
        except KubeError as error:
            _log.info("cannot read the nodes of the operator's replicas: %s", error)
        await asyncio.sleep(EVERY_S)


async def to_move(cluster: Cluster, namespace: str, name: str) -> Json | None:
    """Return another ready pod of the same revision if all of them are on the node of pod `name`, else None."""
    own = (await cluster.list(PODS, namespace, fields=f"metadata.name={name}")).items
    if not own or not is_ready(own[0]):
        return None
    label, node = own[0]["metadata"].get("labels", {}).get(_HASH, ""), own[0]["spec"]["nodeName"]
    same = (await cluster.list(PODS, namespace, f"{_HASH}={label}")).items if label else []
    standbys = [
        pod for pod in same if pod["metadata"]["name"] != name and _owner(pod) == _owner(own[0]) and is_ready(pod)
    ]
    return standbys[0] if standbys and all(pod["spec"]["nodeName"] == node for pod in standbys) else None


def _owner(pod: Json) -> list[str]:
    return [owner["uid"] for owner in pod["metadata"].get("ownerReferences") or ()]
