"""The operator's other replica is kept on another node than the leader's: it takes over when that node is lost."""

from __future__ import annotations

import asyncio
import logging

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import PODS, Cluster
from aegaeon_operator.kube.moves import Moves
from aegaeon_operator.reconcile.cluster.facts import Json
from aegaeon_operator.reconcile.cluster.pod_state import is_ready

_log = logging.getLogger(__name__)
EVERY_S = 20.0
_HASH = "pod-template-hash"


async def keep_apart(cluster: Cluster, moves: Moves, namespace: str, name: str) -> None:
    """For as long as this process leads, as the pod of that name; without end."""
    before = ""
    while True:
        try:
            spare = await to_move(cluster, namespace, name)
            kept = await moves.consider("operator", spare) if spare else ""
            if spare and kept and kept != before:
                _log.warning("both replicas of the operator are on node %s: %s", spare["spec"]["nodeName"], kept)
            before = kept
        except KubeError as error:
            _log.info("whether the operator's replicas share a node is unknown: %s", error)
        await asyncio.sleep(EVERY_S)


async def to_move(cluster: Cluster, namespace: str, name: str) -> Json | None:
    """Another ready pod of its Deployment's newest template on the node of pod `name`, if all are there."""
    own = (await cluster.list(PODS, namespace, fields=f"metadata.name={name}")).items
    if not own or not is_ready(own[0]):
        return None
    label, node = own[0]["metadata"].get("labels", {}).get(_HASH, ""), own[0]["spec"]["nodeName"]
    same = (await cluster.list(PODS, namespace, f"{_HASH}={label}")).items if label else []
    spares = [
        pod for pod in same if pod["metadata"]["name"] != name and _owner(pod) == _owner(own[0]) and is_ready(pod)
    ]
    return spares[0] if spares and all(pod["spec"]["nodeName"] == node for pod in spares) else None


def _owner(pod: Json) -> list[str]:
    return [owner["uid"] for owner in pod["metadata"].get("ownerReferences") or ()]
