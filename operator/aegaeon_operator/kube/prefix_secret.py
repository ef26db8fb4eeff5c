"""The secret by which a pool's gateways keep the KV cache of tenants apart: made once, the same for all of them.

To rotate it is to delete the Secret: another one is made, and what was cached before is found by no new request.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import CONFLICT, Cluster
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Key, Live
from aegaeon_operator.reconcile.cluster.names import PREFIX, PREFIX_ENTRY, child, manifest
from aegaeon_operator.spec.resources import GpuPool


def prefix_secret(key: Key) -> ChildKey:
    """Where it is."""
    return ChildKey("Secret", key.namespace, child(key, PREFIX))


async def ensure(cluster: Cluster, key: Key, pool: Live[GpuPool], children: Mapping[ChildKey, Json]) -> Json | None:
    """Create it where there is none, never replace it: of two who try, the first one's counts for both.

    Returns what was not known. Raises KubeError, also where a Secret of this name has another owner.
    """
    at = prefix_secret(key)
    if at in children:
        return None
    made = manifest("v1", "Secret", at.namespace, at.name, key, pool)
    made["type"] = "Opaque"
    made["data"] = {PREFIX_ENTRY: base64.b64encode(secrets.token_hex(32).encode()).decode()}
    try:
        return await cluster.create(made)
    except KubeError as error:
        if error.status != CONFLICT:
            raise
        return await cluster.claim(made)
