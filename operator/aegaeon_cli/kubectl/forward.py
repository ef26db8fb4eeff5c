"""Port-forward to a pod, as a unix socket in a folder of this user: gRPC cannot use an existing connection."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward
from websocket import WebSocketBadStatusException

from aegaeon_cli.errors import CliError
from aegaeon_cli.kubectl.access import client_errors
from aegaeon_operator.podrunner import SocketFolder

_CHUNK = 64 << 10


@dataclass(slots=True)
class Forward:
    """A port of a pod as the path of a unix socket. `failure`: why the newest connection failed, which its client sees
    as a server that does not answer."""

    path: str
    core: client.CoreV1Api
    namespace: str
    pod: str
    port: int
    failure: CliError | None = None

    def connect(self) -> Any:
        """Open a socket to the port. Raises CliError, and stores it in `failure`."""
        try:
            far = connection(self.core, self.namespace, self.pod, self.port)
        except CliError as error:
            self.failure = error
            raise
        self.failure = None
        return far


@contextlib.contextmanager
def forwarded(core: client.CoreV1Api, namespace: str, pod: str, port: int) -> Iterator[Forward]:
    """Give every connection to the socket a port-forward of its own to the loopback interface of the pod. When that
    fails, the connection is closed at once."""
    with SocketFolder.create() as folder, contextlib.ExitStack() as open_ones:
        forward = Forward(str(folder.path / "s"), core, namespace, pod, port)
        listener = open_ones.enter_context(socket.socket(socket.AF_UNIX))
        listener.bind(forward.path)
        listener.listen()
        acceptor = threading.Thread(target=_accept, args=(listener, forward), daemon=True)
        acceptor.start()
        try:
            yield forward
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
            acceptor.join()


def connection(core: client.CoreV1Api, namespace: str, pod: str, port: int) -> Any:
    """A socket to the port. Raises CliError when the API server refuses it."""
    # The client's port-forward changes the ApiClient that it is called with: threads need one each.
    own = client.CoreV1Api(client.ApiClient(core.api_client.configuration))
    with client_errors(f"port {port} of pod {namespace}/{pod}"):
        try:
            tunnel = portforward(own.connect_get_namespaced_pod_portforward, pod, namespace, ports=str(port))
        except ApiException as error:
            raise _refused(error) from error
        return tunnel.socket(port)


def _refused(error: ApiException) -> ApiException:
    """Restore the status and body of the answer: for a refused tunnel the client keeps them only as text."""
    answer = error.__context__
    if not isinstance(answer, WebSocketBadStatusException):
        return error
    refusal = ApiException(status=answer.status_code, reason=answer.status_message)
    refusal.body = (answer.resp_body or b"").decode("utf-8", "replace")
    return refusal


def _accept(listener: socket.socket, forward: Forward) -> None:
    """Accept connections until the listener is shut down."""
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_join, args=(near, forward), daemon=True).start()


def _join(near: socket.socket, forward: Forward) -> None:
    """Copy bytes in both directions until either side closes.

    A failing send to `far`'s other end would end the client's thread with a traceback: so this end is shut down for
    sending only, and read until the other end closes.
    """
    with near:
        try:
            far = forward.connect()
        except CliError:
            return
        with contextlib.closing(far):
            back = threading.Thread(target=_receive, args=(far, near), daemon=True)
            back.start()
            _copy(near, far)
            _shut(far, socket.SHUT_WR)
            back.join()


def _receive(far: Any, near: socket.socket) -> None:
    """Copy until `far` closes, even after `near` has closed: then the bytes are dropped."""
    _copy(far, near)
    _shut(near, socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        while far.recv(_CHUNK):
            pass


def _copy(source: Any, target: Any) -> None:
    """Copy until the source ends or the target accepts no more bytes."""
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)


def _shut(side: Any, how: int) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(how)
