"""The engine's side of the processes that follow grammars: starts them, asks them, and ends those that do not answer.

A process that computes is bounded by its own limit of processor time, so a busy machine ends none. One that neither
computes nor answers was stopped, or waits for something that will not come: it is ended after `SILENT_S`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from aegaeon_proto.constraints import BUILD, Cost
from aegaeon_proto.engine.sampling import Constraint
from aegaeon_sidecar.domain.errors import EngineError, InvalidError
from aegaeon_sidecar.sampling.grammar_process import FORK, ORDER, STEP_CPU_S, WAIT
from aegaeon_sidecar.sampling.grammar_wire import Header, receive, send

SILENT_S = 2.0
_CHEAP_BYTES = 16 << 20
_POLL_MS = 50
_WALL_S = 60.0  # for any answer, on a machine that gives its process no processor time
_PROGRAM = "from aegaeon_sidecar.sampling.grammar_process import main; main()"
_ENDED = "the process that follows the constraint was ended from outside, or stopped answering"


class GrammarServer:
    """The program that holds one tokenizer and forks a process for each grammar. Used by any thread."""

    def __init__(self, file: Path, size: int, ends: tuple[int, ...]) -> None:
        """Start it and wait for it. Raises InvalidError when it cannot read the tokenizer."""
        self._lock = threading.Lock()
        self._forked: WeakSet[GrammarClient] = WeakSet()
        self._control, remote = socket.socketpair()
        environment = {**os.environ, "MALLOC_ARENA_MAX": "1", "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, "-c", _PROGRAM, str(remote.fileno())]
        with remote:
            self._process = subprocess.Popen(command, pass_fds=[remote.fileno()], env=environment)
        self._control.settimeout(_WALL_S)
        try:
            send(self._control, {"file": str(file), "size": size, "ends": list(ends)})
            received = receive(self._control)
        except OSError:
            received = None
        why = "its process has ended" if received is None else str(received[0]["why"])
        if received is None or why:
            self.end()
            raise InvalidError(f"constraints cannot be used with the model's {file.name}: {why[:500]}")
        self.digest = str(received[0]["digest"])

    def fork(self) -> GrammarClient:
        """Fork a process for a grammar. Raises EngineError."""
        local, remote = socket.socketpair()
        with remote:
            try:
                with self._lock:
                    socket.send_fds(self._control, [ORDER.pack(FORK, 0)], [remote.fileno()])
            except OSError as error:
                local.close()
                raise EngineError(f"the process of the model's tokenizer has ended: {error}") from error
        client = GrammarClient(self, local)
        self._forked.add(client)
        return client

    def ended_by(self, pid: int) -> int:
        """The signal that ended this process of its own; 0 for none, or where that is not known any more."""
        try:
            with self._lock:
                self._control.sendall(ORDER.pack(WAIT, pid))
                received = receive(self._control)
        except OSError:
            return signal.SIGKILL
        return signal.SIGKILL if received is None else int(received[0]["signal"])

    @property
    def pid(self) -> int:
        """The pid of its process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """True while it can fork."""
        return self._process.poll() is None

    def end(self) -> None:
        """End it and all that it has forked."""
        for client in list(self._forked):
            client.end()
        self._control.close()
        self._process.kill()
        self._process.wait()


class GrammarClient:
    """The client of one grammar's process. Used by one thread at a time; `end` by any."""

    def __init__(self, server: GrammarServer, sock: socket.socket) -> None:
        """Wait for the process. Raises EngineError."""
        self.gone: deque[int] = deque()  # numbers of guides that are no more; appended to by any thread
        self._server = server
        self._socket = sock
        self._socket.settimeout(SILENT_S)
        self.pid, self._pidfd = 0, -1
        self._ending = threading.Lock()
        answer, _ = self._answer("")
        self.pid = int(answer["pid"])
        self._pidfd = os.pidfd_open(self.pid)

    def compile(self, constraint: Constraint, cost: Cost, unwanted: Callable[[], bool]) -> None:
        """Build the grammar at this cost at most, while it is not `unwanted`. Raises InvalidError, EngineError."""
        if constraint.kind is None:
            raise InvalidError("the constraint is of a kind that this version does not know")
        header = {"kind": constraint.kind.value, "cpu_s": cost.cpu_s, "memory_bytes": cost.memory_bytes}
        self._send(header, constraint.text.encode())
        answer, _ = self._answer(f"{cost} to compile", unwanted)
        if why := " ".join(str(answer["why"]).split()):
            raise InvalidError(f"the constraint cannot be compiled: {why[:500]}")

    def ask(self, rows: list[tuple[int, list[int]]]) -> None:
        """Begin to compute the masks of these guides, each after the tokens that it has taken."""
        gone = [self.gone.popleft() for _ in range(len(self.gone))]
        header: Header = {"gone": gone, "rows": [(number, len(tokens)) for number, tokens in rows]}
        self._send(header, np.array([token for _, some in rows for token in some], dtype=np.int32).tobytes())

    def masks(self, count: int, words: int) -> tuple[NDArray[np.int32], dict[int, str]]:
        """The masks of the requested rows, int32 [count, words]; failures by row.

        Raises InvalidError, EngineError.
        """
        answer, tail = self._answer(f"{STEP_CPU_S:g} s of CPU time a token, or {BUILD.memory_bytes >> 20} MiB")
        if len(tail) != 4 * count * words:
            self.end()
            raise EngineError("the process that follows the constraint gave masks of another size")
        masks = np.frombuffer(tail, dtype=np.int32).reshape(count, words)
        return masks, {int(row): str(why) for row, why in answer["failed"].items()}

    @property
    def server_pid(self) -> int:
        """The pid of the server that forked the process."""
        return self._server.pid

    @property
    def alive(self) -> bool:
        """True while it can be asked: its process has not ended."""
        return self._pidfd >= 0 and not _readable(self._socket, 0)

    @property
    def cheap(self) -> bool:
        """True when it may be kept while no sequence follows its grammar: it runs, and has little memory of its own."""
        return self.alive and _own_bytes(self.pid) <= _CHEAP_BYTES

    def end(self) -> int:
        """End the process, whatever it does; the signal that has ended it."""
        with self._ending:
            self._socket.close()
            if self._pidfd < 0:
                return signal.SIGKILL
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = -1
            return self._server.ended_by(self.pid)

    def _send(self, header: Header, tail: bytes) -> None:
        with suppress(OSError):  # who waits for the answer finds out why
            send(self._socket, header, tail)

    def _answer(self, cost: str, unwanted: Callable[[], bool] = bool) -> tuple[Header, bytearray]:
        """Raises InvalidError when the process exceeded its limits, EngineError when it ended otherwise."""
        try:
            self._await(unwanted)
            received = receive(self._socket)
        except OSError:
            received = None
        if received is not None:
            return received
        if self.end() == signal.SIGKILL:
            raise EngineError(_ENDED)
        raise InvalidError(f"the constraint takes more than {cost}; send a simpler one")

    def _await(self, unwanted: Callable[[], bool]) -> None:
        """Wait for an answer, or the end of the stream. Raises TimeoutError."""
        begun_s = busy_s = time.monotonic()
        while not _readable(self._socket, _POLL_MS):
            now = time.monotonic()
            busy_s = now if self.pid > 0 and _computes(self.pid) else busy_s
            if unwanted() or now - busy_s > SILENT_S or now - begun_s > _WALL_S:
                raise TimeoutError


def _readable(sock: socket.socket, timeout_ms: int) -> bool:
    """Also at the end of the stream, and where the socket is closed."""
    if sock.fileno() < 0:
        return True
    poll = select.poll()  # not select: an engine may have more than 1024 descriptors
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def _computes(pid: int) -> bool:
    """True when a thread of this process runs or could run. Raises OSError when there is no such process."""
    states = (path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return any(state in "RD" for state in states)


def _own_bytes(pid: int) -> int:
    """Memory that this process shares with no other; all there is when that is not known."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return sys.maxsize
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))
