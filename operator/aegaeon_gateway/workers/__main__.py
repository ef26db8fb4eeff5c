"""`python -m aegaeon_gateway.workers FD`: started by the gateway, never by people."""

from __future__ import annotations

import sys

from aegaeon_gateway.workers.server import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
