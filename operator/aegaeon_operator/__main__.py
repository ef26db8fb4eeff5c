"""`python -m aegaeon_operator`: reads the environment, becomes leader when no other is, reconciles until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import sys

from aegaeon_kube.errors import KubeError
from aegaeon_operator.config import from_environment
from aegaeon_operator.errors import OperatorError
from aegaeon_proto.logs import LogLevelError, configure

# Allocations until collections of the three generations. Facts of thousands of ModelPools stay for as long as they do:
# by default every look would scan all of them several times, which takes longer than the look itself.
COLLECTED = (50_000, 20, 100)
_HELP = """Aegaeon's operator: reconciles the GpuPools and ModelPools of a cluster.

environment:
  AEGAEON_NAMESPACES         namespaces to watch, separated by commas; empty: all
  AEGAEON_CONTROL_IMAGE      image of schedulers and gateways
  AEGAEON_ENGINE_IMAGE       image of engines
  AEGAEON_VLLM_IMAGE         image of engines with backend vllm
  AEGAEON_IMAGE_PULL_POLICY  pull policy of these images (IfNotPresent)
  AEGAEON_REDIS_URL          Redis in which all gateways count quotas; empty: each gateway counts its own
  AEGAEON_REDIS_PASSWORD_FILE, AEGAEON_REDIS_CA_FILE
                             its password, and CA certificates for a rediss:// URL; copied to the pools' gateways
  AEGAEON_PICKER_ROLE        role of the endpoint pickers, for example ClusterRole/NAME (the chart creates it)
  AEGAEON_SCHEDULER_ROLE     role of the schedulers
  AEGAEON_GATEWAY_PROVIDER   none, or istio: create a DestinationRule for each endpoint picker
  AEGAEON_SECURITY_CONTEXT   fixed: pools' pods run as user 65532; platform: as their namespace prescribes (fixed)
  AEGAEON_METRICS_NAMESPACES namespaces whose pods may scrape metrics, separated by commas; *: all (monitoring)
  AEGAEON_POOL_EGRESS        true: NetworkPolicies restrict the pools' egress as well (false)
  AEGAEON_API_SERVER_PORTS, AEGAEON_DNS_PORTS
                             ports allowed by those policies: API server's pods (443,6443) and DNS (53)
  AEGAEON_HEALTH_PORT        port of /healthz (8080); 0: none
  AEGAEON_METRICS_PORT       port of /metrics (9090); 0: none
  AEGAEON_LOG_LEVEL          debug, info, warning (info)
  POD_NAME, POD_NAMESPACE    its name in the Lease, and the Lease's namespace
  KUBECONFIG                 the cluster, when the operator runs outside of it
"""


def main() -> int:
    """Return the exit status: 0 after a signal, 1 when the lease was lost, 2 without a cluster."""
    parser = argparse.ArgumentParser(
        prog="python -m aegaeon_operator", description=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    logging.getLogger("kopf").setLevel(logging.WARNING)  # at INFO it logs every event
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # warns that it handles no signals
    gc.set_threshold(*COLLECTED)
    from aegaeon_operator.kube.operator import run  # --help needs no Kubernetes client

    try:
        configure(os.environ)
        return asyncio.run(run(from_environment(os.environ)))
    except (OperatorError, KubeError, LogLevelError) as error:
        sys.stderr.write(f"aegaeon_operator: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
