"""A proxy between a program and a gateway that writes down how each request was answered."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from local_servers import QuietHandler, serving

_HOP = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding"}
_OURS = {"connection", "content-length", "transfer-encoding", "server", "date"}


@dataclass
class Tap:
    """`answers`: method and path, status, and the beginning of the body, in the order in which they ended."""

    url: str = ""
    answers: list[tuple[str, int, str]] = field(default_factory=list)

    @property
    def refused(self) -> list[tuple[str, int, str]]:
        return [answer for answer in self.answers if answer[1] >= 400]


@contextmanager
def tapped(target: str) -> Iterator[Tap]:
    """The proxy, on a port of its own."""
    tap = Tap()

    class Handler(QuietHandler, BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _forward(self, target, tap)

        do_POST = do_HEAD = do_DELETE = do_GET  # noqa: N815 - names of the library

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as address:
        tap.url = f"http://{address}"
        yield tap


def _forward(handler: BaseHTTPRequestHandler, target: str, tap: Tap) -> None:
    upstream = http.client.HTTPConnection(urlsplit(target).netloc, timeout=120)
    headers = {name: value for name, value in handler.headers.items() if name.lower() not in _HOP}
    upstream.request(handler.command, handler.path, _body(handler), headers)
    answer = upstream.getresponse()
    handler.send_response(answer.status)
    for name, value in answer.getheaders():
        if name.lower() not in _OURS:
            handler.send_header(name, value)
    handler.end_headers()
    beginning = b""
    try:
        while data := answer.read1(65536):
            beginning = (beginning + data)[:1000]
            handler.wfile.write(data)
            handler.wfile.flush()
    except ConnectionError:
        pass  # the program has what it wanted
    upstream.close()
    tap.answers.append((f"{handler.command} {handler.path}", answer.status, beginning.decode(errors="replace")))


def _body(handler: BaseHTTPRequestHandler) -> bytes:
    if handler.headers.get("transfer-encoding", "").lower() != "chunked":
        return handler.rfile.read(int(handler.headers.get("content-length") or 0))
    body = b""
    while size := int(handler.rfile.readline().split(b";")[0], 16):
        body += handler.rfile.read(size)
        handler.rfile.readline()
    handler.rfile.readline()
    return body
