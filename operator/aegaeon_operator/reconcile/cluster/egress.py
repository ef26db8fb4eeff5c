"""A GpuPool's egress settings for its pods: in their configuration, a Secret, and not in their environment."""

from __future__ import annotations

from dataclasses import asdict

from aegaeon_operator.reconcile.cluster.facts import Json
from aegaeon_operator.reconcile.cluster.names import AUTHORITIES, PROXY_USER
from aegaeon_operator.reconcile.cluster.template import Volume
from aegaeon_operator.spec.resources import GpuPoolSpec
from aegaeon_proto.outbound.egress import Egress

_USER, _AUTHORITIES = "credentials", "ca.crt"
_SERVICES = ("svc", "cluster.local")  # domains of Services, which a proxy outside of the cluster cannot resolve


def way_out(spec: GpuPoolSpec) -> Egress:
    """Return the settings with the paths of the pods."""
    egress = spec.egress
    return Egress(
        egress.https_proxy or "",
        egress.http_proxy or "",
        (*egress.no_proxy, *_SERVICES),
        credentials_file=f"{PROXY_USER}/{_USER}" if egress.credentials_secret_ref else "",
        ca_file=f"{AUTHORITIES}/{_AUTHORITIES}" if egress.ca_config_map_ref else "",
    )


def egress_entry(spec: GpuPoolSpec) -> Json:
    """Return the entry of a configuration; empty without settings, since images of older releases refuse the key."""
    return {"egress": asdict(way_out(spec))} if spec.egress.is_given else {}


def egress_volumes(spec: GpuPoolSpec) -> list[Volume]:
    """Return the volumes of proxy credentials and CA certificates: folders, so that they are updated in place."""
    volumes = list[Volume]()
    if user := spec.egress.credentials_secret_ref:
        items = [{"key": user.key, "path": _USER}]
        secret: Json = {"secret": {"secretName": user.name, "items": items, "defaultMode": 0o440}}
        volumes.append(Volume("egress-proxy", PROXY_USER, secret, read_only=True))
    if ca := spec.egress.ca_config_map_ref:
        bundle: Json = {"configMap": {"name": ca.name, "items": [{"key": ca.key, "path": _AUTHORITIES}]}}
        volumes.append(Volume("egress-ca", AUTHORITIES, bundle, read_only=True))
    return volumes
