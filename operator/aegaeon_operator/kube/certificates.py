"""The certificates of a pool: made once, renewed in time, kept in Secrets. The authority's key is mounted nowhere."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import datetime

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import CONFLICT, SECRETS, Cluster
from aegaeon_operator.pki import Pair, is_due, issue, make_authority, signed_by
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Key, Live
from aegaeon_operator.reconcile.cluster.names import child, manifest
from aegaeon_operator.spec.resources import GpuPool


async def ensure(
    cluster: Cluster, key: Key, pool: Live[GpuPool], children: Mapping[ChildKey, Json], now: datetime
) -> tuple[dict[str, bytes], list[Json]]:
    """The files of the pool's certificates, and what was written for them."""
    written: list[Json] = []
    authority_secret = children.get(_key(key, "ca"))
    if authority_secret is None:
        authority_secret = await _authority(cluster, key, pool, now)
        written.append(authority_secret)
    authority = Pair(_file(authority_secret, "tls.crt"), _file(authority_secret, "tls.key"))
    secret = children.get(_key(key, "tls"))
    if secret is None or _stale(secret, authority, now):
        pair = issue(authority, now)
        content = {"ca.crt": authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}
        secret = await cluster.apply(_secret(key, pool, "tls", content))
        written.append(secret)
    return {name: _file(secret, name) for name in ("ca.crt", "tls.crt", "tls.key")}, written


async def _authority(cluster: Cluster, key: Key, pool: Live[GpuPool], now: datetime) -> Json:
    """Created, never replaced: of two who try, the first one's counts for both."""
    made = make_authority(f"{key.namespace}.{key.name}", now)
    try:
        content = {"tls.crt": made.certificate, "tls.key": made.key}
        return await cluster.create(_secret(key, pool, "ca", content))
    except KubeError as error:
        found = await cluster.get(SECRETS, key.namespace, child(key, "ca"))
        if error.status != CONFLICT or found is None:
            raise
        return found


def _stale(secret: Json, authority: Pair, now: datetime) -> bool:
    certificate = _file(secret, "tls.crt")
    return is_due(certificate, now) or not signed_by(certificate, authority.certificate)


def _key(key: Key, part: str) -> ChildKey:
    return ChildKey("Secret", key.namespace, child(key, part))


def _secret(key: Key, pool: Live[GpuPool], part: str, content: dict[str, bytes]) -> Json:
    found = manifest("v1", "Secret", key.namespace, child(key, part), key, pool)
    found["type"] = "kubernetes.io/tls"
    found["data"] = {name: base64.b64encode(value).decode() for name, value in content.items()}
    return found


def _file(secret: Json, name: str) -> bytes:
    return base64.b64decode(secret["data"][name])
