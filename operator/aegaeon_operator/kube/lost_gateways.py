"""Evicts the pod of a gateway that lost its scheduler, to remove it from its Service and replace it."""

from __future__ import annotations

import logging

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.kube.events import post
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Observed, Subject

_log = logging.getLogger(__name__)


async def evict_lost(cluster: Cluster, observed: Observed, pod: Json) -> None:
    """Evict a pod, respecting disruption budgets. A refusal is only logged, to let the statuses be written. Raises
    KubeError when the API server is unavailable."""
    name, node_name, key = pod["metadata"]["name"], pod["spec"]["nodeName"], observed.key
    try:
        if observed.gpu_pool is None or not await cluster.evict(pod):
            return
    except KubeError as error:
        if error.is_unavailable:
            raise
        _log.warning("%s/%s: %s on node %s cannot be evicted: %s", key.namespace, key.name, name, node_name, error)
        return
    text = f"evicted {name} from node {node_name}: it lost the scheduler, while other gateways are attached"
    _log.info("%s/%s: %s", key.namespace, key.name, text)
    pool = ChildKey("GpuPool", key.namespace, key.name)
    await post(cluster, Subject(pool, observed.gpu_pool.uid), "GatewayEvicted", text)
