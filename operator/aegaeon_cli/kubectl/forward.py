"""Port-forward to a pod, as a unix socket in a folder of this user: gRPC dials no connection that is made already."""

from __future__ import annotations

import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubernetes import client
from kubernetes.stream import portforward

from aegaeon_cli.errors import CliError
from aegaeon_cli.kubectl.access import client_errors

_CHUNK = 64 << 10


@contextlib.contextmanager
def forwarded(core: client.CoreV1Api, namespace: str, pod: str, port: int) -> Iterator[str]:
    """The path of a unix socket; every connection to it gets a port-forward of its own to the loopback interface of the
    pod. One that cannot be had is closed at once, which its client sees as a server that does not answer."""
    with tempfile.TemporaryDirectory(prefix="aegaeon-forward-") as folder, contextlib.ExitStack() as open_ones:
        path = str(Path(folder) / "s")
        listener = open_ones.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(path)
        listener.listen()
        acceptor = threading.Thread(target=_accept, args=(listener, core, namespace, pod, port), daemon=True)
        acceptor.start()
        try:
            yield path
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            acceptor.join()


def connection(core: client.CoreV1Api, namespace: str, pod: str, port: int) -> Any:
    """A socket to the port. Raises CliError when the API server refuses it."""
    # The client's port-forward changes the ApiClient that it is called with: threads need one each.
    own = client.CoreV1Api(client.ApiClient(core.api_client.configuration))
    with client_errors(f"port {port} of pod {namespace}/{pod}"):
        return portforward(own.connect_get_namespaced_pod_portforward, pod, namespace, ports=str(port)).socket(port)


def _accept(listener: socket.socket, core: client.CoreV1Api, namespace: str, pod: str, port: int) -> None:
    """Until the listener is shut down."""
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_join, args=(near, core, namespace, pod, port), daemon=True).start()


def _join(near: socket.socket, core: client.CoreV1Api, namespace: str, pod: str, port: int) -> None:
    """Bytes in both directions until either side closes."""
    with near:
        try:
            far = connection(core, namespace, pod, port)
        except CliError:
            return
        back = threading.Thread(target=_copy, args=(far, near), daemon=True)
        back.start()
        _copy(near, far)
        back.join()
        far.close()


def _copy(source: Any, target: Any) -> None:
    """Until the source has no more, or the target takes no more; then the other direction ends, too."""
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    for one in (target, source):
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
