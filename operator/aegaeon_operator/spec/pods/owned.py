"""What the operator sets in every pod itself, so that no template may: names, ports, folders, fields.

A test holds these lists against the pods that are made.
"""

from __future__ import annotations

CONTAINERS = ("engine", "prefill", "decode", "scheduler", "standby", "gateway", "picker", "hand-over")
VOLUMES = (
    "config",
    "tls",
    "credentials",
    "redis",
    "prefix",
    "models",
    "batches",
    "batch-keys",
    "segments",
    "disk",
    "egress-proxy",
    "egress-ca",
    "tmp",
    "cache",
)
VARIABLES = ("POD_NAME", "POD_IP", "NODE_NAME", "OMP_NUM_THREADS")
# Containers of a pod share its network: a port of one is taken for all, also on the loopback interface (7003).
PORTS = (7000, 7001, 7002, 7003, 7101, 7200, 8000, 9002, 9003, 9090)
# Of the pool's own containers: configuration, certificates, caches, code, and the token of the API server.
FOLDERS = (
    "/etc/aegaeon",
    "/opt/aegaeon",
    "/var/cache/aegaeon",
    "/var/lib/aegaeon",
    "/var/run/secrets",
    "/run/secrets",
    "/dev/shm",
    "/proc",
    "/sys",
    "/tmp",
)
# Of a pod or a container, as Kubernetes writes them.
FIELDS = (
    "securityContext",
    "serviceAccountName",
    "automountServiceAccountToken",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "shareProcessNamespace",
    "terminationGracePeriodSeconds",
    "restartPolicy",
    "schedulingGates",
    "nodeName",
    "command",
    "args",
    "ports",
)
