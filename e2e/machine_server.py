"""HTTP servers on an address of this machine, of either family."""

from __future__ import annotations

import socket
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from e2e.cluster.layout import url


class MachineServer(ThreadingHTTPServer):
    """Listens on a free port of an address. http.server by itself takes IPv4 addresses alone."""

    daemon_threads = True

    def __init__(self, address: str, handler: Callable[..., BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, 0), handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        return url(str(host), int(port))
