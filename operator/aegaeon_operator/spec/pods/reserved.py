"""Names, ports, folders and fields of pods that the operator sets and that templates must not.

A test compares these lists with the pods that the operator creates.
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
# Containers of a pod share its network, so each port is used by one container only, on loopback as well (7003).
PORTS = (7000, 7001, 7002, 7003, 7101, 7200, 8000, 9002, 9003, 9090)
# Folders of the pool's own containers: configuration, certificates, caches, code, and the API token.
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
# Fields of a pod or a container, as written in manifests.
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
