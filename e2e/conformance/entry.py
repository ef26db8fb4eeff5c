"""The suite starts its pickers with GIE's options; this says them in the words of ours."""

from __future__ import annotations

import argparse
import sys

from aegaeon_picker.__main__ import main


def ours(argv: list[str]) -> list[str]:
    """The command line of `aegaeon_picker` for one of GIE's picker; unknown options are errors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pool-name", required=True)
    parser.add_argument("--pool-namespace", required=True)
    parser.add_argument("--grpc-port", type=int, required=True)
    parser.add_argument("--grpc-health-port", type=int, required=True)
    parser.add_argument("--zap-encoder", help="the form of log lines: ours is one")
    options = parser.parse_args(argv)
    pool = ["--pool", options.pool_name, "--namespace", options.pool_namespace]
    ports = ["--listen", f"0.0.0.0:{options.grpc_port}", "--health-listen", f"0.0.0.0:{options.grpc_health_port}"]
    return [*pool, *ports, "--conformance"]


if __name__ == "__main__":
    main(ours(sys.argv[1:]))
