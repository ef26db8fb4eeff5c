"""Connections between processes: plaintext over a local unix socket or loopback, else mutual TLS within a pool. No
proxy.

A folder of `ca.crt`, `tls.crt` and `tls.key` (a Kubernetes Secret of type kubernetes.io/tls, mounted) identifies a
process of the pool and its role. It is read again for every new connection: renewals need no restart.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from aegaeon_proto.certificates import NO_TLS, NOT_TAKEN, OTHER_ROLE, Files, TlsError, not_of_this_pool, read
from aegaeon_proto.roles import Role

Options = Sequence[tuple[str, Any]]

_log = logging.getLogger(__name__)
_SECOND_MS = 1000
# A peer whose host or network vanished is noticed within the sum of both, also when nothing is sent. The second one is
# TCP_USER_TIMEOUT as well: gRPC sets it where it sends keepalive pings.
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 2, 3
KEEPALIVE: Options = (
    ("grpc.keepalive_time_ms", KEEPALIVE_S * _SECOND_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * _SECOND_MS),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # as many as it takes
)
# gRPC sends channels through the http_proxy and https_proxy of its environment, where no peer of a pool is.
NO_PROXY: tuple[tuple[str, Any], ...] = (("grpc.enable_http_proxy", 0),)


def plain_channel(target: str, options: Options = ()) -> grpc.aio.Channel:
    """A plaintext channel to a gRPC target of this machine: a unix socket, or the loopback interface."""
    return grpc.aio.insecure_channel(target, options=(*NO_PROXY, *options))


def open_channel(target: str, tls: Path | None, peer: Role, options: Options = ()) -> grpc.aio.Channel:
    """A channel of its own to a gRPC target; `tls` is the folder, None: plaintext. Raises TlsError.

    With certificates the server must have the role `peer`, wherever the target leads.
    """
    options = (*KEEPALIVE, *options)
    if tls is None:
        return plain_channel(target, options)
    return grpc.aio.secure_channel(target, _credentials(tls), options=(*_secured(peer), *options))


def open_blocking_channel(target: str, tls: Path | None, peer: Role) -> grpc.Channel:
    """A blocking channel for a thread without an event loop. Raises TlsError."""
    if tls is None:
        return grpc.insecure_channel(target, options=NO_PROXY)
    return grpc.secure_channel(target, _credentials(tls), options=_secured(peer))


def _credentials(tls: Path) -> grpc.ChannelCredentials:
    files = read(tls)
    return grpc.ssl_channel_credentials(files.authority, files.key, files.certificate)


def _secured(peer: Role) -> Options:
    return (*NO_PROXY, ("grpc.ssl_target_name_override", peer.dns_name))


async def connect(channel: grpc.aio.Channel, timeout_s: float) -> None:
    """Wait until the peer answers. Raises AioRpcError when it does not (see `why`)."""
    nothing: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/aegaeon.v1.NoService/NoMethod")
    try:
        await nothing(b"", timeout=timeout_s)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
            raise


def why(error: grpc.aio.AioRpcError, tls: Path | None) -> str:
    """The cause of a failed connection, in words; `tls` as it was dialled."""
    details = error.details() or error.code().name
    if "CERTIFICATE_VERIFY_FAILED" in details:
        return not_of_this_pool(_cause(details), tls)
    if "Hostname Verification Check failed" in details:
        return OTHER_ROLE
    if tls is not None and "Socket closed" in details:
        return NOT_TAKEN
    if "WRONG_VERSION_NUMBER" in details:
        return NO_TLS
    return details


def _cause(details: str) -> str:
    return details.rpartition("CERTIFICATE_VERIFY_FAILED:")[2].removesuffix(": OK").strip()


def server_credentials(folder: Path) -> grpc.ServerCredentials:
    """Credentials that follow the folder's files at each new connection; unreadable files leave them unchanged."""
    used = read(folder)

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        try:
            files = read(folder)
        except TlsError as error:
            _log.warning("certificates stay as they were: %s", error)
            return None
        if files == used:
            return None
        used = files
        _log.info("certificates of %s were renewed", folder)
        return _configuration(files)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(used),
        renewed,  # type: ignore[arg-type]  # None means "as before", which the stub does not know
        require_client_authentication=True,
    )


def _configuration(files: Files) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.authority)
