"""The secret with which a pool's gateways separate tenants' KV caches; it is the same for all gateways.

Delete the Secret to rotate it: a new one is created, and new requests do not find KV caches of the old one.
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
    """Return the key of the Secret."""
    return ChildKey("Secret", key.namespace, child(key, PREFIX))


async def ensure(cluster: Cluster, key: Key, pool: Live[GpuPool], children: Mapping[ChildKey, Json]) -> Json | None:
    """Create the Secret if it does not exist; if another process created it first, that one counts.

    Returns the Secret if it was not known. Raises KubeError, also if a Secret of this name has another owner.
    """
    at = prefix_secret(key)
    if at in children:
        return None
    body = manifest("v1", "Secret", at.namespace, at.name, key, pool)
    body["type"] = "Opaque"
    body["data"] = {PREFIX_ENTRY: base64.b64encode(secrets.token_hex(32).encode()).decode()}
    try:
        return await cluster.create(body)
    except KubeError as error:
        if error.status != CONFLICT:
            raise
        return await cluster.claim(body)
