"""The certificates of a pool: issued, renewed, and stored in a Secret for each role.

No pod mounts the authority's key. The operator's own certificate is in no Secret, so that no account that may read a
pool's certificates, or run its pods, can act as the operator.
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
    """The result. `own`: the operator's files; `written` and `failures`: Secrets of pods. `expiries`: of the used
    certificates by role, and of the authority as `ca`."""

    own: Files
    written: list[Json] = field(default_factory=list)
    failures: dict[ChildKey, str] = field(default_factory=dict)
    expiries: dict[str, datetime] = field(default_factory=dict)

    def note_expiry(self, role: str, certificate: bytes) -> None:
        """Record the expiry of a role's certificate; a malformed one has none."""
        with contextlib.suppress(ValueError):
            self.expiries[str(role)] = expiry(certificate)


async def ensure(
    cluster: Cluster, key: Key, pool: Live[GpuPool], children: Mapping[ChildKey, Json], now: datetime, own: Files
) -> Certified:
    """Issue or renew the certificates of every role; `own` are used while valid.

    Raises KubeError when the API server is unavailable or there is no authority.
    """
    result = Certified(own)
    authority = await _ensure_authority(cluster, key, pool, children, now, result)
    for role in sorted(set(CERTIFICATES.values())):
        at = _key(key, certificates(role))
        secret = children.get(at)
        files = _files(secret) if secret else {}
        if secret is None or _stale(files, role, authority, now):
            try:
                issued = _issued(authority, role, now)
                body = _secret(key, pool, certificates(role), issued)
                if secret is None:
                    await cluster.claim(body)
                result.written.append(await cluster.apply(body))
                files = issued
            except KubeError as error:
                if error.is_unavailable:
                    raise
                result.failures[at] = str(error)
        result.note_expiry(role, files.get("tls.crt", b""))
    if _stale(own, Role.OPERATOR, authority, now):
        result.own = _issued(authority, Role.OPERATOR, now)
    result.note_expiry(Role.OPERATOR, result.own["tls.crt"])
    result.note_expiry("ca", authority.certificate)
    return result


async def _ensure_authority(
    cluster: Cluster,
    key: Key,
    pool: Live[GpuPool],
    children: Mapping[ChildKey, Json],
    now: datetime,
    result: Certified,
) -> Pair:
    secret = children.get(_key(key, "ca"))
    if secret is None:
        secret = await _authority(cluster, key, pool, now)
        result.written.append(secret)
    return _pair(secret, key)


def _issued(authority: Pair, role: Role, now: datetime) -> Files:
    pair = issue(authority, role, now)
    return {"ca.crt": authority.certificate, "tls.crt": pair.certificate, "tls.key": pair.key}


async def _authority(cluster: Cluster, key: Key, pool: Live[GpuPool], now: datetime) -> Json:
    """Create the authority; if another process created it first, return that one."""
    pair = make_authority(f"{key.namespace}.{key.name}", now)
    secret = _secret(key, pool, "ca", {"tls.crt": pair.certificate, "tls.key": pair.key})
    try:
        return await cluster.create(secret)
    except KubeError as error:
        existing = await cluster.claim(secret) if error.status == CONFLICT else None
        if existing is None:
            raise
        return existing


def _pair(secret: Json, key: Key) -> Pair:
    try:
        return Pair(_file(secret, "tls.crt"), _file(secret, "tls.key"))
    except (KeyError, ValueError) as error:
        text = f"Secret {child(key, 'ca')} is malformed ({error}); delete it to create a new authority"
        raise KubeError(CONFLICT, text) from error


def _stale(files: Files, role: Role, authority: Pair, now: datetime) -> bool:
    if files.keys() != set(_FILES) or files["ca.crt"] != authority.certificate:
        return True
    certificate = files["tls.crt"]
    try:
        return is_due(certificate, now) or not (is_of(certificate, role) and signed_by(certificate, files["ca.crt"]))
    except ValueError:  # corrupted
        return True


def _key(key: Key, part: str) -> ChildKey:
    return ChildKey("Secret", key.namespace, child(key, part))


def _secret(key: Key, pool: Live[GpuPool], part: str, content: dict[str, bytes]) -> Json:
    body = manifest("v1", "Secret", key.namespace, child(key, part), key, pool)
    body["type"] = "kubernetes.io/tls"
    body["data"] = {name: base64.b64encode(value).decode() for name, value in content.items()}
    return body


def _files(secret: Json) -> Files:
    """Return the files of a Secret; none if it is incomplete or corrupted."""
    try:
        return {name: _file(secret, name) for name in _FILES}
    except (KeyError, ValueError):  # corrupted
        return {}


def _file(secret: Json, name: str) -> bytes:
    return base64.b64decode(secret["data"][name])
