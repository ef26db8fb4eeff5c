"""The gateway's ends of the sockets to its fork server and workers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress

from aegaeon_gateway.errors import WireError
from aegaeon_gateway.workers.wire import HEADER, Message, Order, Ready, Reply, decode, frame, lengths

_READY_S = 60.0
"""for the first message of a worker: the fork server may still be importing"""


async def receive(sock: socket.socket) -> tuple[Message, bytes]:
    """A message and its tail. Raises WireError, also at the end."""
    loop = asyncio.get_running_loop()
    head, tail = lengths(await _exactly(loop, sock, HEADER.size))
    message = decode(await _exactly(loop, sock, head))
    return message, await _exactly(loop, sock, tail) if tail else b""


async def _exactly(loop: asyncio.AbstractEventLoop, sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    try:
        while len(data) < size:
            piece = await loop.sock_recv(sock, min(size - len(data), 1 << 18))
            if not piece:
                raise WireError("the other side has ended")
            data += piece
    except OSError as error:
        raise WireError(str(error)) from error
    return bytes(data)


class Control:
    """The gateway's end of the socket to a fork server."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._receiving = self._closed = False

    def order(self, order: Order, *sockets: socket.socket) -> None:
        """Send an order and what belongs to it. Raises WireError."""
        data = frame(order)
        try:
            sent = socket.send_fds(self._sock, [data], [end.fileno() for end in sockets])
        except OSError as error:
            raise WireError(str(error)) from error
        if sent != len(data):
            raise WireError("the fork server does not read")

    async def receive(self) -> tuple[Message, bytes]:
        """The answer to an order; one at a time. Raises WireError, also when `close` is called meanwhile."""
        self._receiving = True
        try:
            return await receive(self._sock)
        finally:
            self._receiving = False
            if self._closed:
                self._sock.close()

    def close(self) -> None:
        """The fork server ends.

        A pending `receive` is woken, and closes the socket itself: closed under it, the receive would never return, and
        would share its descriptor's number with the next fork server's.
        """
        self._closed = True
        self._sock.shutdown(socket.SHUT_RDWR)
        if not self._receiving:
            self._sock.close()


class Worker:
    """One worker process. `generation`: of the fork server that forked it."""

    def __init__(self, sock: socket.socket, generation: int) -> None:
        self.generation = generation
        self._sock = sock
        self._pid = 0

    async def ready(self) -> None:
        """Until it has begun. Raises WireError."""
        if self._pid:
            return
        try:
            async with asyncio.timeout(_READY_S):
                message, _ = await receive(self._sock)
        except TimeoutError:
            raise WireError("the worker did not begin") from None
        if not isinstance(message, Ready):
            raise WireError(f"the worker began with {type(message).__name__}")
        self._pid = message.pid

    async def do(self, message: Message, body: bytes | bytearray) -> tuple[Reply, bytes]:
        """One job. Raises WireError when the worker has ended."""
        loop = asyncio.get_running_loop()
        try:
            await loop.sock_sendall(self._sock, frame(message, body))
            await loop.sock_sendall(self._sock, body)
        except OSError as error:
            raise WireError(str(error)) from error
        reply, tail = await receive(self._sock)
        if not isinstance(reply, Reply):
            raise WireError(f"the worker answered with {type(reply).__name__}")
        return reply, tail

    def close(self) -> None:
        """An idle worker ends by itself."""
        self._sock.close()

    def kill(self) -> None:
        """End the process, which has ended already or is in the middle of a job that is not waited for any more."""
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
        self._sock.close()
