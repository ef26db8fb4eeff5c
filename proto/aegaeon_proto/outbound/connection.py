"""Connections to checked addresses, with bounded waits. The address that was resolved and checked is the one
dialled."""

from __future__ import annotations

import io
import re
import socket
import ssl
import time
from http import HTTPStatus
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import Any

from aegaeon_proto.outbound.egress import Proxy
from aegaeon_proto.outbound.errors import RefusedError, UnreachableError
from aegaeon_proto.outbound.limits import Overhead, Watch
from aegaeon_proto.outbound.policy import Address, Policy, parse_address
from aegaeon_proto.outbound.urls import Url

_BUFFER_BYTES = 64 << 10
_TUNNEL = re.compile(r"Tunnel connection failed: (\d{3})")  # as http.client says it
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED})
_CONNECT_S = 10.0  # to one of a host's addresses; there may be others


class GuardedSocket:
    """The socket interface that http.client needs. It stays open until `release`, as an answer is read after its
    connection."""

    def __init__(self, sock: socket.socket, watch: Watch) -> None:
        self._sock = sock
        self._watch = watch
        self.overhead = Overhead()

    def makefile(self, mode: str) -> io.BufferedReader:
        """A reader: http.client asks for no other mode."""
        return io.BufferedReader(_Waits(self._sock, self._watch, self.overhead), _BUFFER_BYTES)

    def sendall(self, data: Any) -> None:
        self._sock.settimeout(self._watch.left_s())
        self._sock.sendall(data)

    def close(self) -> None:
        """Do nothing: http.client closes it before the answer is read; see `release`."""

    def release(self) -> None:
        self._sock.close()


class _Waits(io.RawIOBase):
    """Reads of a socket, each in waits short enough to notice a cancellation or a deadline."""

    def __init__(self, sock: socket.socket, watch: Watch, overhead: Overhead) -> None:
        super().__init__()
        self._sock = sock
        self._watch = watch
        self._overhead = overhead

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        silent_s = 0.0
        while True:
            self._sock.settimeout(self._watch.patience_s())
            began_s = time.monotonic()
            try:
                nbytes = self._sock.recv_into(buffer)
            except TimeoutError:
                waited_s = time.monotonic() - began_s
                silent_s += waited_s
                self._watch.waited(waited_s, 0)
                if silent_s >= self._watch.limits.answer_s:
                    raise UnreachableError(f"sent nothing for {silent_s:.0f} s") from None
                continue
            self._watch.waited(time.monotonic() - began_s, nbytes)
            self._overhead.wire_bytes += nbytes
            self._overhead.check()
            return nbytes


def connect(url: Url, policy: Policy, watch: Watch, tls: ssl.SSLContext) -> tuple[HTTPConnection, GuardedSocket]:
    """Connect to an address of the host that the policy admits. Raises RefusedError, UnreachableError, OSError."""
    error: OSError | None = None
    for address in _admitted(url, policy):
        try:
            sock = socket.create_connection((address, url.port), watch.patience_s(_CONNECT_S))
        except OSError as problem:
            error = problem
            continue
        return _over(sock, url, watch, tls)
    assert error is not None
    raise error


def through(
    proxy: Proxy, url: Url, policy: Policy, watch: Watch, tls: ssl.SSLContext
) -> tuple[HTTPConnection, GuardedSocket]:
    """Connect through a proxy of the machine's owner or the platform team, which resolves the name."""
    objection = policy.objection(url.scheme, url.host, url.port, _literal(url.host))
    if objection:
        raise RefusedError(objection)
    made: HTTPConnection
    if url.scheme == "https":
        made = HTTPSConnection(proxy.host, proxy.port, timeout=watch.left_s(), context=tls)
        made.set_tunnel(url.host, url.port, proxy.headers)
    else:
        made = HTTPConnection(proxy.host, proxy.port, timeout=watch.left_s())
    try:
        _connect(made)
    except ssl.SSLError:
        raise
    except OSError as error:
        raise _not_through(proxy, error) from error
    guarded = GuardedSocket(made.sock, watch)
    made.sock = guarded
    return made, guarded


def _connect(made: HTTPConnection) -> None:
    """Also close the proxy's answer to CONNECT, which http.client before Python 3.11.4 leaves open with its socket."""
    answers: list[HTTPResponse] = []

    class Answer(HTTPResponse):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            answers.append(self)

    usual, made.response_class = made.response_class, Answer
    try:
        made.connect()
    finally:
        made.response_class = usual
        for answer in answers:
            answer.close()


def refused_by(proxy: Proxy, status: int) -> RefusedError:
    """The error for a proxy that demands credentials, or does not allow the server."""
    return RefusedError(f"the proxy {proxy} answers {status}; check its credentials and its allowed servers")


def _not_through(proxy: Proxy, error: OSError) -> RefusedError | UnreachableError:
    tunnel = _TUNNEL.match(str(error))
    if tunnel and int(tunnel[1]) in _REFUSALS:
        return refused_by(proxy, int(tunnel[1]))
    problem = f"answers {tunnel[1]}" if tunnel else f"cannot be reached: {error.strerror or error}"
    return UnreachableError(f"the proxy {proxy} {problem}")


def _over(sock: socket.socket, url: Url, watch: Watch, tls: ssl.SSLContext) -> tuple[HTTPConnection, GuardedSocket]:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(watch.left_s())  # of the whole TLS handshake
        if url.scheme == "https":
            sock = tls.wrap_socket(sock, server_hostname=url.host)
    except BaseException:
        sock.close()
        raise
    made = HTTPConnection(url.host, url.port)
    if url.scheme == "https":
        made.default_port = 443  # what the Host header leaves out
    guarded = GuardedSocket(sock, watch)
    made.sock = guarded
    return made, guarded


def _admitted(url: Url, policy: Policy) -> list[str]:
    """The host's addresses that may be dialled, at least one. Raises RefusedError and UnreachableError."""
    try:
        resolved = socket.getaddrinfo(url.host, url.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a host name"
        raise UnreachableError(f"the name {url.host} cannot be resolved: {reason}") from None
    objections = {str(entry[4][0]): "" for entry in resolved}
    for text in objections:
        objections[text] = policy.objection(url.scheme, url.host, url.port, parse_address(text))
    admitted = [text for text, objection in objections.items() if not objection]
    if not admitted:
        raise RefusedError(f"{url.host} {next(iter(objections.values()))}")
    return admitted


def _literal(host: str) -> Address | None:
    """The address that a host is written as, in any of the forms that a resolver takes; None for a name."""
    try:
        resolved = socket.getaddrinfo(host, None, flags=socket.AI_NUMERICHOST)
    except (OSError, UnicodeError):
        return None
    return parse_address(str(resolved[0][4][0]))
