"""A web server with faults, for downloads."""

from __future__ import annotations

import hashlib
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import local_servers

from aegaeon_proto.engine.catalog import HttpSource
from aegaeon_proto.outbound.client import Outbound
from aegaeon_proto.outbound.egress import DIRECT, Egress
from aegaeon_proto.outbound.limits import Limits
from aegaeon_proto.outbound.policy import EVERYWHERE, Policy
from aegaeon_proto.pooling import POOLING
from aegaeon_sidecar.weights.boundary import Guarded
from aegaeon_sidecar.weights.disk import DiskTier
from aegaeon_sidecar.weights.sources import remote_of

WEIGHTS = bytes(range(256)) * 12_000
FILES = {"config.json": b"{}", "model.safetensors": WEIGHTS, "tokenizer.json": b"[]"}


def quick_tier(folder: Path, budget_bytes: int = 1 << 30) -> DiskTier:
    """A disk tier whose pauses between tries are 10 ms at most."""
    # They wait for servers, which here are ready at once, and for others who fetch the model and need the processor.
    return DiskTier(folder / "disk", budget_bytes, lambda seconds: time.sleep(min(seconds, 0.01)))


ANYWHERE = {"allowed": list(EVERYWHERE)}  # as `sources` of a configuration: these tests' servers are on this machine


def web_settings(folder: Path, budget_bytes: int = 1 << 30) -> dict[str, Any]:
    """Settings of a sidecar that fetches models into a folder, from these tests' servers as well."""
    return {"disk": {"folder": str(folder / "disk"), "budget_bytes": budget_bytes}, "sources": ANYWHERE}


def outbound(ambient: bool = False, egress: Egress = DIRECT, **limits: float) -> Outbound:
    """Requests to this machine's own servers."""
    return Outbound(Policy(EVERYWHERE), Limits(**limits), ambient, egress)


def remote(url: str, credentials_file: str = "", **limits: float) -> Guarded:
    """A folder on a web server."""
    source = HttpSource(url, credentials_file)
    return remote_of(source, outbound(**limits).client(), ambient=False)


@dataclass
class Server:
    """A folder on a web server with faults: `cuts` are bytes after which answers of a file break off, in turn.

    Without `sizes` it never says how long a file is, and ends an answer by closing the connection. What
    is asked for below the folder `hanging` is not answered until `released`; below `dripping` a byte comes ten times a
    second. `redirects`: where a file is instead; `promised`: what HEAD says of a file's size; `endless`: files
    that never end; `retry_after`: header of refusals. `tokens`: the Authorization header of every request, by path.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: dict(FILES))
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    sizes: bool = True
    status: dict[str, int] = field(default_factory=dict)
    retry_after: str = ""
    asked: list[tuple[str, int]] = field(default_factory=list)
    hanging: str = ""
    dripping: str = ""
    redirects: dict[str, str] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    endless: set[str] = field(default_factory=set)
    tokens: list[tuple[str, str | None]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def sent(self, name: str) -> int:
        """Times a file was asked for."""
        return sum(asked == name for asked, _ in self.asked)


class Handler(local_servers.QuietHandler, BaseHTTPRequestHandler):
    def __init__(self, server: Server, *arguments: Any) -> None:
        self.folder = server
        super().__init__(*arguments)

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        name = POOLING if path.endswith(f"/{POOLING}") else path.rpartition("/")[2]
        folder = path.removesuffix(f"/{name}")
        if self.folder.hanging and folder.endswith(self.folder.hanging):
            self.folder.released.wait()
        self.folder.tokens.append((self.path, self.headers.get("Authorization")))
        if name in self.folder.redirects:
            self.send_response(302)
            self.send_header("Location", self.folder.redirects[name])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = self.folder.files.get(name)
        status = self.folder.status.get(name, 200 if data is not None else 404)
        if data is None or status != 200:
            self.send_response(status)
            if self.folder.retry_after:
                self.send_header("Retry-After", self.folder.retry_after)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        wanted = self.headers.get("Range")
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.folder.ranges else 0
        if start and start >= len(data):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if self.folder.sizes and name not in self.folder.endless:
            nbytes = self.folder.promised.get(name, len(data)) if self.command == "HEAD" else len(data)
            self.send_header("Content-Length", str(nbytes - start))
        self.send_header("ETag", '"' + hashlib.sha1(data).hexdigest() + '"')
        self.end_headers()
        if self.command == "GET":
            self.folder.asked.append((name, start))
            cut = self.folder.cuts.pop(0) if self.folder.cuts and name.endswith("safetensors") else len(data)
            self._send(
                data[start : start + cut], name, slow=bool(folder) and folder.endswith(self.folder.dripping or "-")
            )

    def _send(self, data: bytes, name: str, slow: bool) -> None:
        with suppress(ConnectionError):  # the client has had enough
            while slow and data and not self.folder.released.wait(0.1):
                self.wfile.write(data[:1])
                data = data[1:]
            self.wfile.write(data)
            while name in self.folder.endless and not self.folder.released.is_set():
                self.wfile.write(data)


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """On a free port, for as long as the block runs."""
    made = Server()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, made))
    server.socket = tls.wrap_socket(server.socket, server_side=True) if tls else server.socket
    with local_servers.serving(server) as address:
        made.address = f"{'https' if tls else 'http'}://{address}/models/tiny"
        try:
            yield made
        finally:
            made.released.set()
