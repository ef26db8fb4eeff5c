"""HTTPS servers of this machine that an API server calls, for the time of a `with`."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any

from e2e.cluster.pki import Authority
from e2e.machine_server import MachineServer


class JsonHandler(BaseHTTPRequestHandler):
    """Answers in JSON, and logs nothing: tests have their own output, and API servers ask every few seconds."""

    def answer(self, status: int, body: dict[str, Any]) -> None:
        """The whole answer."""
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """See the class."""


@contextmanager
def https(handler: type[JsonHandler], address: str, folder: Path) -> Iterator[int]:
    """Yields its port. Its certificate for the address is signed by the authority ca.crt, which it makes in the
    folder."""
    Authority(folder).issue("server", "server", addresses=(address,))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.crt", folder / "server.key")
    with MachineServer(address, handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, name="https")
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
