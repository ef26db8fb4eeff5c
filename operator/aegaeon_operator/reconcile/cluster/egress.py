"""A GpuPool's way out, as its pods get it: in their configuration, a Secret; nothing of it is in their environment."""

from __future__ import annotations

from dataclasses import asdict

from aegaeon_operator.reconcile.cluster.facts import Json
from aegaeon_operator.reconcile.cluster.names import AUTHORITIES, PROXY_USER
from aegaeon_operator.reconcile.cluster.template import Volume
from aegaeon_operator.spec.resources import GpuPoolSpec
from aegaeon_proto.outbound.egress import Egress

_USER, _AUTHORITIES = "credentials", "ca.crt"
_SERVICES = ("svc", "cluster.local")  # domains of Services, which a proxy outside of the cluster does not know


def way_out(spec: GpuPoolSpec) -> Egress:
    """As pods see it."""
    given = spec.egress
    return Egress(
        given.https_proxy or "",
        given.http_proxy or "",
        (*given.no_proxy, *_SERVICES),
        credentials_file=f"{PROXY_USER}/{_USER}" if given.credentials_secret_ref else "",
        ca_file=f"{AUTHORITIES}/{_AUTHORITIES}" if given.ca_config_map_ref else "",
    )


def egress_entry(spec: GpuPoolSpec) -> Json:
    """Of a configuration; none where the manifest says nothing: images of former releases do not know the key."""
    return {"egress": asdict(way_out(spec))} if spec.egress.is_given else {}


def egress_volumes(spec: GpuPoolSpec) -> list[Volume]:
    """The user of the proxies, and authorities of certificates: as folders, so that both change while a pod runs."""
    found = list[Volume]()
    if user := spec.egress.credentials_secret_ref:
        items = [{"key": user.key, "path": _USER}]
        secret: Json = {"secret": {"secretName": user.name, "items": items, "defaultMode": 0o440}}
        found.append(Volume("egress-proxy", PROXY_USER, secret, read_only=True))
    if ca := spec.egress.ca_config_map_ref:
        bundle: Json = {"configMap": {"name": ca.name, "items": [{"key": ca.key, "path": _AUTHORITIES}]}}
        found.append(Volume("egress-ca", AUTHORITIES, bundle, read_only=True))
    return found
