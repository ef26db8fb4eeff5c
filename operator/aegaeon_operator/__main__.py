"""`python -m aegaeon_operator`: reads the environment, leads when no other does, works until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys

from aegaeon_kube.errors import KubeError
from aegaeon_operator.config import from_environment
from aegaeon_operator.errors import OperatorError

_HELP = """Aegaeon's operator: makes GpuPools and ModelPools of a cluster so.

environment:
  AEGAEON_NAMESPACES         where it works, separated by commas; empty: everywhere
  AEGAEON_CONTROL_IMAGE      image of schedulers and gateways
  AEGAEON_ENGINE_IMAGE       image of engines
  AEGAEON_VLLM_IMAGE         image of engines with backend vllm
  AEGAEON_IMAGE_PULL_POLICY  of all (IfNotPresent)
  AEGAEON_REDIS_URL          where gateways count quotas together; empty: each for itself
  AEGAEON_REDIS_PASSWORD_FILE, AEGAEON_REDIS_CA_FILE
                             its password, and authorities for a rediss:// URL; handed on to the pools' gateways
  AEGAEON_PICKER_ROLE        what endpoint pickers may, for example ClusterRole/NAME (the chart makes it)
  AEGAEON_SCHEDULER_ROLE     and what schedulers may
  AEGAEON_GATEWAY_PROVIDER   none, or istio: a DestinationRule is made for each endpoint picker
  AEGAEON_SECURITY_CONTEXT   fixed: pools' pods run as user 65532; platform: as their namespace says (fixed)
  AEGAEON_METRICS_NAMESPACES whose pods may reach the ports of metrics, separated by commas; *: all (monitoring)
  AEGAEON_POOL_EGRESS        true: policies say where pools' pods may go, too (false)
  AEGAEON_API_SERVER_PORTS, AEGAEON_DNS_PORTS
                             for these: ports of the pods of API server (443,6443) and DNS (53)
  AEGAEON_HEALTH_PORT        port of /healthz (8080); 0: none
  AEGAEON_METRICS_PORT       port of /metrics (9090); 0: none
  AEGAEON_LOG_LEVEL          debug, info, warning (info)
  POD_NAME, POD_NAMESPACE    who it is, and where its lease lies
  KUBECONFIG                 outside of a cluster
"""


def main() -> int:
    """The exit status: 0 after a signal, 1 when the lease was lost, 2 when there is no cluster."""
    parser = argparse.ArgumentParser(
        prog="python -m aegaeon_operator", description=_HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args()
    level = os.environ.get("AEGAEON_LOG_LEVEL", "info").upper()
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("kopf").setLevel(logging.WARNING)  # it tells of every event
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)  # and that it leaves signals to us
    from aegaeon_operator.kube.operator import run  # --help needs no Kubernetes client

    try:
        return asyncio.run(run(from_environment(os.environ)))
    except (OperatorError, KubeError) as error:
        sys.stderr.write(f"aegaeon_operator: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
