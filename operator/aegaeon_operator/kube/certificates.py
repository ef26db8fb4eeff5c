"""The certificates of a pool: made once, renewed in time, a Secret for each role whose pods mount it.

The authority's key is mounted nowhere. The operator's own certificate is in no Secret at all: no account that may read
a pool's Secrets of certificates, or run its pods, can speak for the operator.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import CONFLICT, Cluster
from aegaeon_operator.pki import Pair, expiry, is_due, is_of, issue, make_authority, signed_by
from aegaeon_operator.reconcile.cluster.facts import ChildKey, Json, Key, Live
from aegaeon_operator.reconcile.cluster.names import CERTIFICATES, certificates, child, manifest
from aegaeon_operator.spec.resources import GpuPool
from aegaeon_proto.roles import Role

_FILES = ("ca.crt", "tls.crt", "tls.key")
Files = dict[str, bytes]
"""Content of ca.crt, tls.crt and tls.key by name."""


@dataclass(slots=True)
class Certified:
    """`own` are the operator's files; `written` and `failures` are about the Secrets of pods. `expiries`: of what is
    used, by role, `ca` being the authority."""

    own: Files
    written: list[Json] = field(default_factory=list)
    failures: dict[ChildKey, str] = field(default_factory=dict)
    expiries: dict[str, datetime] = field(default_factory=dict)

    def note_expiry(self, role: str, certificate: bytes) -> None:
        """Of what a role uses; one that cannot be read has none."""
        with contextlib.suppress(ValueError):
            self.expiries[str(role)] = expiry(certificate)


async def ensure(
    cluster: Cluster, key: Key, pool: Live[GpuPool], children: Mapping[ChildKey, Json], now: datetime, own: Files
) -> Certified:
    """The desired certificates of every role; `own` are used while valid.

    Raises KubeError when the API server is unavailable, or the authority cannot be had.
    """
    found = Certified(own)
    authority = await _ensure_authority(cluster, key, pool, children, now, found)
    for role in sorted(set(CERTIFICATES.values())):
        at = _key(key, certificates(role))
        secret = children.get(at)
        files = _files(secret) if secret else {}
        if secret is None or _stale(files, role, authority, now):
            try:
                issued = _issued(authority, role, now)
                made = _secret(key, pool, certificates(role), issued)
                if secret is None:
                    await cluster.claim(made)
                found.written.append(await cluster.apply(made))
                files = issued
            except KubeError as error:
                if error.is_unavailable:
                    raise
                found.failures[at] = str(error)
        found.note_expiry(role, files.get("tls.crt", b""))
    if _stale(own, Role.OPERATOR, authority, now):
        found.own = _issued(authority, Role.OPERATOR, now)
    found.note_expiry(Role.OPERATOR, found.own["tls.crt"])
    found.note_expiry("ca", authority.certificate)
    return found


async def _ensure_authority(
    cluster: Cluster,
    key: Key,
    pool: Live[GpuPool],
    children: Mapping[ChildKey, Json],
    now: datetime,
    found: Certified,
) -> Pair:
    held = children.get(_key(key, "ca"))
    if held is None:
        held = await _authority(cluster, key, pool, now)
        found.written.append(held)
    return _pair(held, key)


def _issued(authority: Pair, role: Role, now: datetime) -> Files:
    pair = issue(authority, role, now)
    return {"ca.crt": authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}


async def _authority(cluster: Cluster, key: Key, pool: Live[GpuPool], now: datetime) -> Json:
    """Created, never replaced: of two who try, the first one's counts for both."""
    made = make_authority(f"{key.namespace}.{key.name}", now)
    secret = _secret(key, pool, "ca", {"tls.crt": made.certificate, "tls.key": made.key})
    try:
        return await cluster.create(secret)
    except KubeError as error:
        found = await cluster.claim(secret) if error.status == CONFLICT else None
        if found is None:
            raise
        return found


def _pair(secret: Json, key: Key) -> Pair:
    try:
        return Pair(_file(secret, "tls.crt"), _file(secret, "tls.key"))
    except (KeyError, ValueError) as error:
        text = f"Secret {child(key, 'ca')} cannot be read ({error}); delete it, and the pool gets another authority"
        raise KubeError(CONFLICT, text) from error


def _stale(files: Files, role: Role, authority: Pair, now: datetime) -> bool:
    if files.keys() != set(_FILES) or files["ca.crt"] != authority.certificate:
        return True
    certificate = files["tls.crt"]
    try:
        return is_due(certificate, now) or not (is_of(certificate, role) and signed_by(certificate, files["ca.crt"]))
    except ValueError:  # it was corrupted
        return True


def _key(key: Key, part: str) -> ChildKey:
    return ChildKey("Secret", key.namespace, child(key, part))


def _secret(key: Key, pool: Live[GpuPool], part: str, content: dict[str, bytes]) -> Json:
    found = manifest("v1", "Secret", key.namespace, child(key, part), key, pool)
    found["type"] = "kubernetes.io/tls"
    found["data"] = {name: base64.b64encode(value).decode() for name, value in content.items()}
    return found


def _files(secret: Json) -> Files:
    """Those that are there and can be read."""
    try:
        return {name: _file(secret, name) for name in _FILES}
    except (KeyError, ValueError):  # it was corrupted
        return {}


def _file(secret: Json, name: str) -> bytes:
    return base64.b64decode(secret["data"][name])
