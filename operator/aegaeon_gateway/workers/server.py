"""The fork server: `python -m aegaeon_gateway.workers FD`. It holds every model's text and forks workers.

A model is loaded in a fork as well, under limits. When that has succeeded, the fork is the fork server from then on
and this one ends with its last worker; when it has failed, nothing has happened here. So a hostile file never meets a
process that others depend on, and no file is read twice. No process forks with more than one thread.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from aegaeon_gateway.errors import TokenizerError, WireError
from aegaeon_gateway.workers.bounds import check_resident
from aegaeon_gateway.workers.model import ModelText, load
from aegaeon_gateway.workers.wire import Drop, Failed, Load, Loaded, Spawn, receive, send
from aegaeon_gateway.workers.worker import work
from aegaeon_proto import process_limits as limits

_REAP_S = 1.0
_TOO_MUCH = "loading its tokenizer takes more than {:g} s of CPU time or {} MiB of memory"


@dataclass(slots=True)
class Candidate:
    """A fork that loads a model. `channel`: it sends a byte there when it has."""

    pid: int
    channel: socket.socket
    order: Load


@dataclass(slots=True)
class ForkServer:
    """`control`: the socket to the gateway, whose end is the end of all."""

    control: socket.socket
    models: dict[bytes, ModelText] = field(default_factory=dict)
    workers: set[int] = field(default_factory=set)
    candidate: Candidate | None = None

    def serve(self) -> None:
        """Until the gateway is gone, or a fork has taken over and every worker of this one has ended."""
        while True:
            self._reap()
            waiting = [self.control, *([self.candidate.channel] if self.candidate else [])]
            ready, _, _ = select.select(waiting, [], [], _REAP_S)
            if self.candidate is not None and self.candidate.channel in ready and self._candidate_spoke():
                return self._retire()
            if self.control in ready and not self._obey():
                return self._end()

    def _obey(self) -> bool:
        """One order of the gateway; False when it is gone."""
        try:
            received = receive(self.control)
        except (WireError, OSError):
            return False
        if received is None:
            return False
        order, _, descriptors = received
        if isinstance(order, Spawn):
            self._spawn(order, descriptors[0])
        elif isinstance(order, Load):
            self._load(order)
        elif isinstance(order, Drop):
            self._drop(order)
        return True

    # ---- workers -----------------------------------------------------------------------------------------------------

    def _spawn(self, order: Spawn, descriptor: int) -> None:
        pid = os.fork()
        if pid:
            os.close(descriptor)
            self.workers.add(pid)
            return
        try:
            limits.die_with_parent()
            os.closerange(3, descriptor)
            os.closerange(descriptor + 1, descriptor + 256)
            work(socket.socket(fileno=descriptor), order, self.models)
        finally:
            os._exit(0)  # whatever it was: the gateway sees the end of the socket

    def _reap(self) -> None:
        self.workers = {pid for pid in self.workers if os.waitpid(pid, os.WNOHANG) == (0, 0)}

    # ---- models ------------------------------------------------------------------------------------------------------

    def _drop(self, order: Drop) -> None:
        if not order.grammars:
            self.models.pop(order.key, None)
        elif (text := self.models.get(order.key)) is not None:
            text.drop_grammars()

    def _load(self, order: Load) -> None:
        """Fork; the fork returns from here as a fork server too, once it has loaded and was let."""
        if self.candidate is not None:
            self._candidate_spoke()  # the gateway knows already that it failed: it is about to end
        parent_end, child_end = socket.socketpair()
        pid = os.fork()
        if pid:
            child_end.close()
            self.candidate = Candidate(pid, parent_end, order)
            return
        parent_end.close()
        self.workers = set()
        loaded, strings = _loaded(self.control, order, self.models)
        child_end.send(b"!")
        if not child_end.recv(1):
            os._exit(0)
        child_end.close()
        send(self.control, loaded, strings)

    def _candidate_spoke(self) -> bool:
        """Let it take over; False when it has ended instead."""
        assert self.candidate is not None
        if not self.candidate.channel.recv(1):
            return self._candidate_ended()
        self.candidate.channel.send(b"!")
        return True

    def _candidate_ended(self) -> bool:
        """Forget a candidate that has reported a failure, or was killed by its limits."""
        candidate, self.candidate = self.candidate, None
        assert candidate is not None
        candidate.channel.close()
        _, status = os.waitpid(candidate.pid, 0)
        if status:
            limit = candidate.order.limit
            send(self.control, Failed(candidate.order.key, _TOO_MUCH.format(limit.cpu_s, limit.memory_bytes >> 20)))
        return False

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _retire(self) -> None:
        """A fork has taken over. Workers of this one end when the gateway closes their sockets."""
        self.control.close()
        for pid in self.workers:
            os.waitpid(pid, 0)

    def _end(self) -> None:
        for pid in {*self.workers, *([self.candidate.pid] if self.candidate else [])}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _loaded(control: socket.socket, order: Load, models: dict[bytes, ModelText]) -> tuple[Loaded, bytes]:
    """Load within the order's limit. When it fails, tell the gateway and end; over the limit, end with a status."""
    reason, before = "", limits.resident()
    try:
        limits.raise_on_cpu_timer()
        limits.limit_address_space(order.limit.memory_bytes)
        with limits.cpu_time(order.limit.cpu_s):
            text = models.get(order.key) if order.grammars else None
            text = text or load(Path(order.directory), models.values())
            if order.grammars:
                text.read_grammars()
            described, strings = text.described(order.key)
        gc.collect()
        check_resident(resident := limits.resident() - before)
        limits.lift_address_space_limit()
        models[order.key] = text
        gc.freeze()  # what is there is not touched by collections of forks, so its pages stay shared
        return replace(described, resident_bytes=max(resident, 0)), strings
    except (limits.TimeLimitReached, MemoryError):
        os._exit(1)
    except TokenizerError as error:
        reason = str(error)
    except BaseException as error:  # noqa: BLE001 - a panic of native code on an untrusted file is none of Exception
        reason = f"the tokenizer cannot be loaded: {type(error).__name__}: {str(error)[:500]}"
    send(control, Failed(order.key, reason))
    os._exit(0)


def import_what_loading_needs() -> None:
    """Before the first fork, so that no fork does it again."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # no threads in a process that forks
    from transformers import PreTrainedTokenizerFast as _  # noqa: F401 - imported for its cost alone

    gc.freeze()


def main(descriptor: int) -> None:
    """Serve the gateway at the other end of a socket; returns when every process of it has ended.

    Each fork server ends before the one that took its place. This process adopts that one, so that none becomes a
    child of the gateway, which in a container has the number 1 and reaps nothing.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the gateway drains; its end is ours
    limits.become_subreaper()
    if os.fork():
        os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            while True:
                os.wait()
        return
    import_what_loading_needs()
    ForkServer(socket.socket(fileno=descriptor)).serve()
    os._exit(0)
