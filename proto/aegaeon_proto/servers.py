"""gRPC servers of a pool: bounded against untrusted clients, with calls authorized by role.

The options bound the resources of a client before it has shown a certificate; the table in `roles` bounds the calls of
a peer. Both hold for every server, as this is the one place where servers are made.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import grpc

from aegaeon_proto.certificates import TlsError
from aegaeon_proto.channels import KEEPALIVE_S, Options, server_credentials
from aegaeon_proto.roles import AUDITED, CALLERS, Role, role_of

_log = logging.getLogger(__name__)
_KIB, _SECOND_MS = 1 << 10, 1000
# Peers of a scheduler or gateway are some thousand engines and gateways at most, each with one or two streams.
MOST_CONNECTIONS = 4096
HANDSHAKE_S = 10  # a scheduler that starts is dialled by all at once, perhaps on a busy node
BOUNDS: Options = (
    ("grpc.so_reuseport", 0),  # a second server on the same address is an error, not a second listener
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * _SECOND_MS),  # TCP, TLS and HTTP/2's first frames together
    ("grpc.max_connection_idle_ms", 60 * _SECOND_MS),  # a connection without a stream
    ("grpc.max_concurrent_streams", 16),
    ("grpc.max_metadata_size", 4 * _KIB),
    ("grpc.absolute_max_metadata_size", 8 * _KIB),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_S * _SECOND_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),  # else between two calls one ping in two hours is allowed
    ("grpc.http2.max_ping_strikes", 2),  # of pings that come more often
    ("grpc.keepalive_time_ms", 5 * _SECOND_MS),  # a peer whose host vanished is noticed, also when nothing is sent
    ("grpc.keepalive_timeout_ms", 5 * _SECOND_MS),
)

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in its stub alone


def make_server(options: Options = ()) -> grpc.aio.Server:
    """A server that knows the table of roles; `options` add to the bounds, or take their place."""
    return grpc.aio.server(interceptors=(_ByRole(),), options=tuple((dict(BOUNDS) | dict(options)).items()))


def add_port(server: grpc.aio.Server, target: str, tls: Path | None) -> int:
    """Serve on a gRPC target. Raises TlsError, and RuntimeError when the target is not available.

    Without certificates clients have no identity, so that only a unix socket or the loopback interface is allowed.
    """
    if tls is not None:
        return server.add_secure_port(target, server_credentials(tls))
    require_local(target)
    return server.add_insecure_port(target)


def require_local(target: str) -> None:
    """Raises TlsError for a target that other machines can reach: it needs certificates."""
    if not _within_machine(target):
        raise TlsError(f"{target} is reached from other machines, so it needs certificates: set `tls`")


def _within_machine(target: str) -> bool:
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    host = target.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _ByRole(grpc.aio.ServerInterceptor):
    """Checks the caller's certificate before the first message is read; later messages of a stream are not checked."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        handler = await continuation(handler_call_details)
        # A method that is not served here has no handler: gRPC answers UNIMPLEMENTED by itself.
        return handler and _guarded(handler, handler_call_details.method)


def _guarded(handler: Handler, method: str) -> Handler:
    """The handler behind the check. Servicers of a pool have the kinds below."""
    unary: Any = handler.unary_unary  # the stubs know handlers of sync servers alone
    streaming: Any = handler.stream_stream or handler.unary_stream
    serializers = {
        "request_deserializer": handler.request_deserializer,
        "response_serializer": handler.response_serializer,
    }
    if unary is not None:

        async def answer(request: Any, context: Context) -> Any:
            await _check(method, context)
            return await unary(request, context)

        return grpc.unary_unary_rpc_method_handler(answer, **serializers)
    if streaming is None:
        raise NotImplementedError(f"{method}: no server of a pool takes a stream and answers once")
    kind = grpc.stream_stream_rpc_method_handler if handler.request_streaming else grpc.unary_stream_rpc_method_handler

    async def stream(request: Any, context: Context) -> None:
        await _check(method, context)
        answers = streaming(request, context)
        if isinstance(answers, Awaitable):
            await answers  # it writes by itself
        else:
            async for reply in answers:
                await context.write(reply)

    return kind(stream, **serializers)


async def _check(method: str, context: Context) -> None:
    """End the call with PERMISSION_DENIED when the caller's role is not allowed to make it."""
    known = context.auth_context()
    if known.get("transport_security_type") != [b"ssl"]:  # plaintext, where add_port allows it
        caller = "a local process"
    else:
        role = role_of([name.decode(errors="replace") for name in known.get("x509_subject_alternative_name", ())])
        if role is None or role not in CALLERS.get(method, ()):
            await _refuse(method, role, context)
        caller = str(role)
    if method in AUDITED:
        _log.info("audit: %s at %s called %s", caller, context.peer(), _short(method))


async def _refuse(method: str, role: Role | None, context: Context) -> None:
    allowed = " or ".join(sorted(CALLERS.get(method, ()))) or "no role"
    shown = "a certificate without a role of the pool" if role is None else f"a certificate of role {role}"
    sentence = f"{shown} may not call {_short(method)}, which is for: {allowed}"
    _log.warning("audit: refused %s: %s", context.peer(), sentence)
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, sentence)


def _short(method: str) -> str:
    return method.rpartition(".")[2].replace("/", ".")
