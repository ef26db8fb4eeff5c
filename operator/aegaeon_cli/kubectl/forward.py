"""Port-forward to a pod, as a unix socket in a folder of this user: gRPC dials no connection that is made already."""

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
    """A port of a pod as the path of a unix socket. `failure`: why the newest connection could not be had, which its
    client sees as a server that does not answer."""

    path: str
    core: client.CoreV1Api
    namespace: str
    pod: str
    port: int
    failure: CliError | None = None

    def connect(self) -> Any:
        """A socket to the port. Raises CliError, and notes it."""
        try:
            far = connection(self.core, self.namespace, self.pod, self.port)
        except CliError as error:
            self.failure = error
            raise
        self.failure = None
        return far


@contextlib.contextmanager
def forwarded(core: client.CoreV1Api, namespace: str, pod: str, port: int) -> Iterator[Forward]:
    """Every connection to the socket gets a port-forward of its own to the loopback interface of the pod. One that
    cannot be had is closed at once."""
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
    """With the status and the body of the answer: of a tunnel that is refused, the client keeps them as text alone."""
    answer = error.__context__
    if not isinstance(answer, WebSocketBadStatusException):
        return error
    found = ApiException(status=answer.status_code, reason=answer.status_message)
    found.body = (answer.resp_body or b"").decode("utf-8", "replace")
    return found


def _accept(listener: socket.socket, forward: Forward) -> None:
    """Until the listener is shut down."""
    while True:
        try:
            near, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_join, args=(near, forward), daemon=True).start()


def _join(near: socket.socket, forward: Forward) -> None:
    """Bytes in both directions until either side closes.

    A send to `far`'s other end that fails would end the client's thread with a traceback: this end is shut for sending
    alone, and read until the other closes.
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
    """Until `far` closes, also when `near` has: then what comes is dropped."""
    _copy(far, near)
    _shut(near, socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        while far.recv(_CHUNK):
            pass


def _copy(source: Any, target: Any) -> None:
    """Until the source has no more, or the target takes no more."""
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)


def _shut(side: Any, how: int) -> None:
    with contextlib.suppress(OSError):
        side.shutdown(how)
