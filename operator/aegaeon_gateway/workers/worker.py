"""A worker's life: one job after another from its socket, each within its limit, until the socket ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping

from aegaeon_gateway.errors import InvalidRequestError
from aegaeon_gateway.request.parse import names_of
from aegaeon_gateway.workers.grammars import NeedsGrammarsError
from aegaeon_gateway.workers.model import ModelText
from aegaeon_gateway.workers.wire import (
    Exceeded,
    Job,
    Missing,
    NeedsGrammars,
    Peek,
    Peeked,
    Ready,
    Refused,
    Reply,
    Spawn,
    receive,
    send,
)
from aegaeon_gateway.workers.work import run
from aegaeon_proto import process_limits as limits


def work(sock: socket.socket, spawn: Spawn, models: Mapping[bytes, ModelText]) -> None:
    """Serve until the gateway closes the socket, or a limit was exceeded: what is left behind then is not reused."""
    if spawn.low:
        limits.lower_priority()
    limits.raise_oom_score()
    limits.raise_on_cpu_timer()
    limits.limit_address_space(spawn.limit.memory_bytes)
    send(sock, Ready(os.getpid()))
    while (received := receive(sock)) is not None:
        message, body, _ = received
        assert isinstance(message, Job | Peek)
        reply, tail = _within(spawn.limit.cpu_s, message, body, models)
        send(sock, reply, tail)
        if spawn.once or isinstance(reply, Exceeded):
            return


def _within(cpu_s: float, message: Job | Peek, body: bytes, models: Mapping[bytes, ModelText]) -> tuple[Reply, bytes]:
    stages = ["checking"]
    try:
        with limits.cpu_time(cpu_s):
            if isinstance(message, Peek):
                return Peeked(*names_of(body)), b""
            return _ran(message, body, models, stages)
    except InvalidRequestError as error:
        return Refused(error.message, error.param, error.code), b""
    except (limits.TimeLimitReached, MemoryError):
        return Exceeded(stages[-1]), b""
    except BaseException as error:  # noqa: BLE001 - a panic of the tokenizer's native code is none of Exception
        reason = f"This model's tokenizer fails on the request: {type(error).__name__}: {str(error)[:500]}"
        return Refused(reason, None, "tokenizer"), b""


def _ran(job: Job, body: bytes, models: Mapping[bytes, ModelText], stages: list[str]) -> tuple[Reply, bytes]:
    """Raises InvalidRequestError, and whatever the model's tokenizer does."""
    if (text := models.get(job.key)) is None:
        return Missing(), b""
    try:
        return run(job, body, text, stages.append)
    except NeedsGrammarsError:
        return NeedsGrammars(), b""
