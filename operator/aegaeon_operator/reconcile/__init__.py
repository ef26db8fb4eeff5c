"""Derives the desired pods of a pool from its spec. Pure functions; podrunner and kube apply the result."""

from aegaeon_operator.reconcile.changes import needs_restart
from aegaeon_operator.reconcile.local import LocalSettings, reconcile
from aegaeon_operator.reconcile.pods import AttachedProbe, DesiredPod, HttpProbe, PodRole, Probe, SocketProbe

__all__ = [
    "AttachedProbe",
    "DesiredPod",
    "HttpProbe",
    "LocalSettings",
    "PodRole",
    "Probe",
    "SocketProbe",
    "needs_restart",
    "reconcile",
]
