"""Decide: what a pool asks for becomes the pods that should run. Pure; others carry it out."""

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
