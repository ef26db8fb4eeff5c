"""Fork servers for tests: forks of one process that has imported transformers, instead of a program for each test.

`working` is a pool of workers on one of these, or on a program as the gateway starts it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from aegaeon_gateway.workers.pool import PoolConfig, WorkerPool
from aegaeon_gateway.workers.server import ForkServer, import_what_loading_needs
from aegaeon_gateway.workers.supervisor import Starter, Stopped
from aegaeon_gateway.workers.wire import Limit

WORKERS = PoolConfig(2, Limit(10.0, 512 << 20), 60.0)


@contextmanager
def forking_starter() -> Iterator[Starter]:
    """A `Starter`; its process ends with the context."""
    here, there = socket.socketpair()
    with there:
        command = [sys.executable, "-m", "gateway.forks", str(there.fileno())]
        process = subprocess.Popen(command, pass_fds=[there.fileno()], cwd=os.path.dirname(os.path.dirname(__file__)))

    async def start(sock: socket.socket) -> Stopped:
        socket.send_fds(here, [b"!"], [sock.fileno()])
        return _nothing

    yield start
    here.close()
    process.wait(60)


async def _nothing() -> None:
    return None


@asynccontextmanager
async def working(start: Starter) -> AsyncIterator[WorkerPool]:
    """A pool of workers, whose processes end with the context."""
    workers = WorkerPool(WORKERS, start)
    try:
        yield workers
    finally:
        await workers.stop()


def main(descriptor: int) -> None:
    control = socket.socket(fileno=descriptor)
    import_what_loading_needs()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        word, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not word:
            return
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            control.close()
            ForkServer(socket.socket(fileno=descriptors[0])).serve()
            os._exit(0)
        os.close(descriptors[0])


if __name__ == "__main__":
    main(int(sys.argv[1]))
