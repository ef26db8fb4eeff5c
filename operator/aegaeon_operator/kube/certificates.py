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

_FILES = ("ca.crt", "tls.crt", "tls.key")


async def ensure(
    cluster: Cluster, key: Key, pool: Live[GpuPool], children: Mapping[ChildKey, Json], now: datetime
) -> tuple[dict[str, bytes], list[Json]]:
    """The files of the pool's certificates, and what was written for them. Raises KubeError."""
    written: list[Json] = []
    held = children.get(_key(key, "ca"))
    if held is None:
        held = await _authority(cluster, key, pool, now)
        written.append(held)
    authority = _pair(held, key)
    if not _owned(held, pool):  # a pool made anew, before those of the old one were gone
        content = {"tls.crt": authority.certificate, "tls.key": authority.key}
        written.append(await cluster.apply(_secret(key, pool, "ca", content)))
    secret = children.get(_key(key, "tls"))
    if secret is None:
        await cluster.claim_secret(key.namespace, child(key, "tls"))
    if secret is None or not _owned(secret, pool) or _stale(secret, authority, now):
        pair = issue(authority, now)
        content = {"ca.crt": authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}
        secret = await cluster.apply(_secret(key, pool, "tls", content))
        written.append(secret)
    return {name: _file(secret, name) for name in _FILES}, written


async def _authority(cluster: Cluster, key: Key, pool: Live[GpuPool], now: datetime) -> Json:
    """Created, never replaced: of two who try, the first one's counts for both."""
    made = make_authority(f"{key.namespace}.{key.name}", now)
    try:
        content = {"tls.crt": made.certificate, "tls.key": made.key}
        return await cluster.create(_secret(key, pool, "ca", content))
    except KubeError as error:
        found = await cluster.get(SECRETS, key.namespace, child(key, "ca")) if error.status == CONFLICT else None
        if found is None:
            raise
        await cluster.claim_secret(key.namespace, child(key, "ca"))
        return found


def _pair(secret: Json, key: Key) -> Pair:
    try:
        return Pair(_file(secret, "tls.crt"), _file(secret, "tls.key"))
    except (KeyError, ValueError) as error:
        text = f"Secret {child(key, 'ca')} cannot be read ({error}); delete it, and the pool gets another authority"
        raise KubeError(CONFLICT, text) from error


def _owned(secret: Json, pool: Live[GpuPool]) -> bool:
    return any(one["uid"] == pool.uid for one in secret["metadata"].get("ownerReferences", ()))


def _stale(secret: Json, authority: Pair, now: datetime) -> bool:
    try:
        trusted, certificate, _ = (_file(secret, name) for name in _FILES)
        if trusted != authority.certificate or is_due(certificate, now):
            return True
    except (KeyError, ValueError):  # somebody broke it
        return True
    return not signed_by(certificate, authority.certificate)


def _key(key: Key, part: str) -> ChildKey:
    return ChildKey("Secret", key.namespace, child(key, part))


def _secret(key: Key, pool: Live[GpuPool], part: str, content: dict[str, bytes]) -> Json:
    found = manifest("v1", "Secret", key.namespace, child(key, part), key, pool)
    found["type"] = "kubernetes.io/tls"
    found["data"] = {name: base64.b64encode(value).decode() for name, value in content.items()}
    return found


def _file(secret: Json, name: str) -> bytes:
    return base64.b64decode(secret["data"][name])
