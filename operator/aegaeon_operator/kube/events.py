"""Events about objects, for `kubectl describe`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

from aegaeon_kube.errors import KubeError
from aegaeon_operator.kube.client import Cluster
from aegaeon_operator.reconcile.cluster.facts import Subject
from aegaeon_operator.reconcile.cluster.names import MANAGER
from aegaeon_operator.spec.resources import API_VERSION

_log = logging.getLogger(__name__)
_LONGEST = 1024


async def post(cluster: Cluster, about: Subject, reason: str, message: str, warning: bool = False) -> None:
    """Create an Event for a GpuPool or ModelPool. An error is logged: the status or the log has the message, too."""
    try:
        await cluster.create(_event(about, reason, message, warning))
    except KubeError as error:
        _log.info("%s %s/%s: cannot create an Event: %s", *about.key, error)


def _event(about: Subject, reason: str, message: str, warning: bool) -> dict[str, object]:
    key, stamp = about.key, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    named = {"kind": key.kind, "namespace": key.namespace, "name": key.name, "uid": about.uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{key.name}-", "namespace": key.namespace},
        "involvedObject": {"apiVersion": API_VERSION, **named},
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": message[:_LONGEST],
        "source": {"component": MANAGER},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
