"""Serves connections of frames: bounded against untrusted clients, for peers of one role."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from google.protobuf.message import DecodeError, Message

from aegaeon_proto.certificates import ServerContext
from aegaeon_proto.frames import HANDSHAKE_S, PREFACE, FrameError, Frames, frame, host_and_port, keep_alive
from aegaeon_proto.roles import Role, role_of
from aegaeon_proto.servers import MOST_CONNECTIONS, require_local

FRAMES_A_TURN = 500  # some 5 ms

_log = logging.getLogger(__name__)


class Session(Protocol):
    """Handles one peer's frames."""

    def received(self, data: bytes) -> None:
        """Handle one frame. Raises DecodeError when it is not a message; the connection then ends."""
        ...

    def ended(self) -> None:
        """Note that the peer sends no more; unless the connection is lost, frames can still be sent to it."""
        ...


class Connection(asyncio.Protocol):
    """One peer. Until it has sent the preface it costs little more than a socket."""

    def __init__(self, server: FrameServer) -> None:
        self._server = server
        self._frames = Frames(server.most_bytes)
        self._preface = PREFACE
        self._early = b""  # received before its role was looked at
        self._admitted = False
        self._session: Session | None = None
        self._session_waits = self._frames_wait = False

    def send(self, message: Message) -> None:
        """Write to the transport's buffer; dropped when the connection is lost."""
        if not self._transport.is_closing():
            self._transport.write(frame(message))

    def pause(self) -> None:
        """Stop reading from the peer."""
        self._session_waits = True
        self._read()

    def resume(self) -> None:
        self._session_waits = False
        self._read()

    def close(self) -> None:
        """Close after sending the buffered data."""
        self._end_session()
        self._transport.close()

    # ---- what asyncio calls ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._late = asyncio.get_running_loop().call_later(HANDSHAKE_S, self._abort)
        if not self._server.enter(self):
            self._abort()
            return
        keep_alive(transport)
        if (context := self._server.context()) is None:
            self._admitted = True
        else:
            transport.pause_reading()
            self._handshake = asyncio.create_task(self._start_tls(context))

    def data_received(self, data: bytes) -> None:
        if not self._admitted:
            self._early += data
            return
        if self._transport.is_closing() or (self._preface and not (data := self._after_preface(data))):
            return
        self._take(data)

    def eof_received(self) -> None:
        self._end_session()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._late.cancel()
        self._end_session()
        self._server.leave(self)

    def _take(self, data: bytes = b"") -> None:
        """Handle the next frames, and the rest in a later turn: many small ones must not hold the event loop."""
        handled = 0
        try:
            for message in islice(self._frames.of(data), FRAMES_A_TURN):
                handled += 1
                if self._session is not None:
                    self._session.received(message)
        except (FrameError, DecodeError) as error:
            self._refuse(str(error))
            return
        self._frames_wait = handled == FRAMES_A_TURN and not self._transport.is_closing()
        if self._frames_wait:
            asyncio.get_running_loop().call_soon(self._take)
        self._read()

    def _read(self) -> None:
        """Resume reading, or stop it while the session or frames wait."""
        if self._transport.is_closing():
            return
        if self._session_waits or self._frames_wait:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # ---- before the first frame -------------------------------------------------------------------------------------

    async def _start_tls(self, context: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        try:
            secured = await loop.start_tls(
                self._transport, self, context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError as error:
            self._refuse(f"no TLS: {error.strerror or error}")
            return
        if secured is None:  # lost meanwhile
            self._abort()
            return
        self._transport = secured
        if self._has_role(secured.get_extra_info("peercert") or {}):
            self._admitted = True
            self.data_received(self._early)

    def _has_role(self, certificate: dict[str, Any]) -> bool:
        role = role_of(name for _, name in certificate.get("subjectAltName", ()))
        if role is self._server.caller:
            return True
        shown = "a certificate without a role of the pool" if role is None else f"a certificate of role {role}"
        self._refuse(f"{shown} may not call {self._server.name}, which is for: {self._server.caller}")
        return False

    def _after_preface(self, data: bytes) -> bytes:
        """The data after the preface; empty while the preface is incomplete."""
        start, data = data[: len(self._preface)], data[len(self._preface) :]
        if not self._preface.startswith(start):
            self._refuse("it does not speak the frame protocol")
            return b""
        self._preface = self._preface[len(start) :]
        if not self._preface:
            self._late.cancel()
            self._session = self._server.session(self)
        return data

    def _refuse(self, sentence: str) -> None:
        _log.warning("audit: refused %s: %s", self._transport.get_extra_info("peername") or "a local process", sentence)
        self._abort()

    def _abort(self) -> None:
        self._transport.abort()
        self.connection_lost(None)  # which asyncio does not call during a handshake

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.ended()


class FrameServer:
    """Listens for peers of the role `caller`; `session` makes the handler of a peer's frames, each at most
    `most_bytes`."""

    def __init__(self, name: str, caller: Role, session: Callable[[Connection], Session], most_bytes: int) -> None:
        self.name, self.caller, self.session, self.most_bytes = name, caller, session, most_bytes
        self._open: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._tls: ServerContext | None = None

    async def start(self, target: str, tls: Path | None) -> int:
        """Listen on `unix:PATH` or `HOST:PORT`, and return the port (0: a unix socket).

        Raises OSError when the target is not available, and TlsError: without certificates only a unix socket or the
        loopback interface is allowed.
        """
        if tls is not None:
            self._tls = ServerContext(tls)
        else:
            require_local(target)
        try:
            self._server = await self._listen(target)
        except OSError as error:
            raise OSError(f"cannot serve on {target}: {error.strerror or error}") from error
        address = self._server.sockets[0].getsockname()
        return int(address[1]) if isinstance(address, tuple) else 0

    async def _listen(self, target: str) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        if target.startswith("unix:"):
            return await loop.create_unix_server(lambda: Connection(self), target.removeprefix("unix:"))
        return await loop.create_server(lambda: Connection(self), *host_and_port(target))

    def stop(self) -> None:
        """Refuse new connections and end the open ones."""
        assert self._server is not None, "it was started"
        self._server.close()
        for connection in list(self._open):
            connection.close()

    # ---- what connections call --------------------------------------------------------------------------------------

    def context(self) -> ssl.SSLContext | None:
        """The TLS context of a new connection; None: without TLS."""
        return None if self._tls is None else self._tls.current()

    def enter(self, connection: Connection) -> bool:
        """Register a connection; False when there are too many."""
        self._open.add(connection)
        return len(self._open) <= MOST_CONNECTIONS

    def leave(self, connection: Connection) -> None:
        self._open.discard(connection)
