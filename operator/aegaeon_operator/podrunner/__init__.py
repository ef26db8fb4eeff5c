"""Runs desired pods as child processes, like a kubelet on one machine."""

from aegaeon_operator.podrunner.child import Reporter, RestartPolicy, tethered
from aegaeon_operator.podrunner.preflight import look, missing_models, preflight, unusable_keys
from aegaeon_operator.podrunner.runfolder import (
    RunFolder,
    RunState,
    SegmentsFolder,
    dead_runs,
    default_base,
    find_run,
    node_folder,
    runs_of,
    segments_alone,
    sweep,
    sweep_node,
)
from aegaeon_operator.podrunner.runner import PodRunner
from aegaeon_operator.podrunner.scaling import LocalScaling
from aegaeon_operator.podrunner.sockets import SocketFolder

__all__ = [
    "LocalScaling",
    "PodRunner",
    "Reporter",
    "RestartPolicy",
    "RunFolder",
    "RunState",
    "SegmentsFolder",
    "SocketFolder",
    "dead_runs",
    "default_base",
    "find_run",
    "look",
    "missing_models",
    "node_folder",
    "preflight",
    "runs_of",
    "segments_alone",
    "sweep",
    "sweep_node",
    "tethered",
    "unusable_keys",
]
