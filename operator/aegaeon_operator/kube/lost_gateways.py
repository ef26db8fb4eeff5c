"""Takes a gateway that its scheduler has lost out of its Service: its pod is evicted, and another takes its place."""

from __future__ import annotations

import logging

from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.kube.events import post
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Observed, Subject

_log = logging.getLogger(__name__)


async def evict_lost(cluster: Cluster, observed: Observed, pod: Json) -> None:
    """An eviction, not a deletion: a disruption budget keeps the others. Raises KubeError."""
    if observed.gpu_pool is None or not await cluster.evict(pod):
        return
    name, node_name, key = pod["metadata"]["name"], pod["spec"]["nodeName"], observed.key
    text = f"{name} on node {node_name} is not attached to the scheduler any more, and is evicted: others are attached"
    _log.info("%s/%s: %s", key.namespace, key.name, text)
    pool = ChildKey("GpuPool", key.namespace, key.name)
    await post(cluster, Subject(pool, observed.gpu_pool.uid), "GatewayEvicted", text)
