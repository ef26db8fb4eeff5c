"""A real Redis on a socket of its own, and a proxy before it that makes it slow."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from pathlib import Path

import pytest

HAS_REDIS = shutil.which("redis-server") is not None
needs_redis = pytest.mark.skipif(
    not HAS_REDIS, reason="redis-server is not installed; as root, apt-get install redis-server"
)


@contextmanager
def running_redis(path: Path) -> Iterator[None]:
    """Listens on this socket, in a folder where it writes nothing."""
    options = ("--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(path.parent))
    server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
    try:
        while not _answers(path):
            assert server.poll() is None
            time.sleep(0.01)  # the server says nothing that could be waited for
        yield
    finally:
        server.terminate()
        server.wait()


def _answers(path: Path) -> bool:
    """The socket is there before anything listens on it."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


class SlowRedis:
    """A proxy before a Redis that answers each call `delay_s` later."""

    def __init__(self, url: str, path: Path) -> None:
        self._real = url.removeprefix("unix://")
        self.path = path
        self.delay_s = 0.0
        self._open = set[asyncio.Task[None]]()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        server = await asyncio.start_unix_server(self._pipe, str(self.path))
        try:
            yield
        finally:
            server.close()
            await asyncio.sleep(0.01)  # what was accepted has begun
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        near, far = await asyncio.open_unix_connection(self._real)
        with closing(writer), closing(far), suppress(asyncio.CancelledError):
            await asyncio.gather(self._copy(reader, far, lambda: 0.0), self._copy(near, writer, lambda: self.delay_s))

    async def _copy(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, delay_s: Callable[[], float]
    ) -> None:
        while data := await source.read(1 << 16):
            await asyncio.sleep(delay_s())
            target.write(data)
        target.close()
