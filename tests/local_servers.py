"""Servers of tests on this machine: Python's own on a thread of this process, an S3 store as a process."""

from __future__ import annotations

import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest


class QuietHandler(BaseHTTPRequestHandler):
    """A handler that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""


@contextmanager
def serving(server: socketserver.BaseServer) -> Iterator[str]:
    """Serve until the end of the context; yields the address as host:port."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        host, port, *_ = server.server_address
        yield f"{host!s}:{port!s}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def s3_server() -> Iterator[str]:
    """URL of an empty S3 store. Tests are skipped where its packages are not installed."""
    pytest.importorskip("moto", reason="needs moto and flask-cors, the S3 server of the tests")
    pytest.importorskip("flask_cors", reason="needs moto and flask-cors, the S3 server of the tests")
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        address = next(line for line in server.stderr if "Running on" in line).split()[-1]
        reader = threading.Thread(target=server.stderr.read)
        reader.start()
        yield address
        server.terminate()
        reader.join()
