"""The processes that compile and follow grammars. `main` is a program of its own; its argument is a socket.

One program for each tokenizer reads it and forks a process for each grammar, which shares the tokenizer's pages. A
grammar is untrusted and its compiler's own bounds are known to have holes: in here each piece of work has a limit of
processor time, and all of it one of memory, so that it costs the sequences that follow this grammar alone.
"""

from __future__ import annotations

import gc
import hashlib
import os
import signal
import socket
import struct
import sys
from array import array
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer
from llguidance.numpy import fill_next_token_bitmask_par

from aegaeon_proto import process_limits as limits
from aegaeon_proto.constraints import BUILD, Cost, matcher_of
from aegaeon_proto.engine.sampling import ConstraintKind
from aegaeon_sidecar.sampling.grammar_wire import Header, receive, send
from aegaeon_sidecar.sampling.white_space import WORD_BITS, LeadingSpaces, WhiteSpace

ORDER = struct.Struct("<cI")  # FORK: with the new process' socket; WAIT: for the process of this number
FORK, WAIT = b"f", b"w"
TOKENIZER = Cost(cpu_s=15.0, memory_bytes=2 << 30)
STEP_CPU_S = 0.25
"""for the masks of one step, of all sequences that follow the grammar"""
_THREADS = 4


@dataclass(frozen=True, slots=True)
class Sequence:
    """The position of one output in its grammar. `spaces`: for an output that is JSON."""

    matcher: LLMatcher
    spaces: WhiteSpace | None

    def accept(self, tokens: list[int]) -> None:
        """The output goes on with these tokens."""
        self.matcher.consume_tokens(tokens)
        if self.spaces is not None:
            self.spaces.accept(tokens)


class Follower:
    """One grammar and the sequences that follow it, by their numbers. `leading`: of a grammar of JSON."""

    def __init__(self, first: LLMatcher, vocab_size: int, leading: LeadingSpaces | None) -> None:
        self._first = first
        self._leading = leading
        self._sequences: dict[int, Sequence] = {}
        self._executor: LLExecutor | None = None
        self._words = -(-vocab_size // WORD_BITS)

    def step(self, header: Header, tokens: bytearray) -> tuple[Header, memoryview]:
        """The masks of the rows that the header names, after the tokens that each has taken since the last time."""
        for number in header["gone"]:
            self._sequences.pop(number, None)
        taken, at = array("i", tokens), 0
        rows: list[Sequence] = []
        for number, count in header["rows"]:
            sequence = self._sequences.get(number) or self._sequences.setdefault(number, self._begun())
            sequence.accept(taken[at : at + count].tolist())
            at += count
            rows.append(sequence)
        words = np.full((len(rows), self._words), -1, dtype=np.int32)
        sound = [(sequence.matcher, row) for row, sequence in enumerate(rows) if not sequence.matcher.is_error()]
        if sound:  # the library refuses an empty list
            fill_next_token_bitmask_par(self._threads(), sound, words)
        failed: dict[str, str] = {}
        for row, sequence in enumerate(rows):
            if sequence.matcher.is_error():
                failed[str(row)] = sequence.matcher.get_error()
            elif sequence.spaces is not None:
                sequence.spaces.bound(words[row])
        return {"failed": failed}, words.data.cast("B")

    def _begun(self) -> Sequence:
        return Sequence(self._first.deep_copy(), WhiteSpace(self._leading) if self._leading is not None else None)

    def _threads(self) -> LLExecutor:
        """A thread pool, made after the fork: threads do not survive one."""
        if self._executor is None:
            self._executor = LLExecutor(min(_THREADS, os.cpu_count() or 1))
        return self._executor


def follow(sock: socket.socket, tokenizer: LLTokenizer, leading: LeadingSpaces) -> None:
    """A grammar's life: compiled once, then step by step, until the engine closes the socket."""
    limits.die_with_parent()
    limits.raise_oom_score()
    limits.raise_on_cpu_timer()
    send(sock, {"pid": os.getpid()})
    if (order := receive(sock)) is None:
        return
    header, text = order
    try:
        limits.limit_address_space(header["memory_bytes"])
        with limits.cpu_time(header["cpu_s"]):
            kind = ConstraintKind(header["kind"])
            first, why = _compiled(tokenizer, kind, text.decode())
    except limits.TimeLimitReached:
        return  # as one that the second timer killed
    send(sock, {"why": why})
    if first is None:
        return
    limits.limit_address_space(BUILD.memory_bytes)
    follower = Follower(first, tokenizer.vocab_size, leading if kind is ConstraintKind.JSON_SCHEMA else None)
    while (request := receive(sock)) is not None:
        with limits.cpu_time(STEP_CPU_S):
            header, masks = follower.step(*request)
        send(sock, header, masks)


def _compiled(tokenizer: LLTokenizer, kind: ConstraintKind, text: str) -> tuple[LLMatcher | None, str]:
    """The matcher before any token, or why there is none."""
    try:
        return matcher_of(kind, text, tokenizer), ""
    except BaseException as error:
        if isinstance(error, limits.TimeLimitReached | MemoryError):
            raise
        return None, str(error) or type(error).__name__  # whatever the library makes of an untrusted grammar


def _tokenizer(header: Header) -> tuple[tuple[LLTokenizer, LeadingSpaces] | None, Header]:
    """The tokenizer that the order names, and the answer to it."""
    try:
        limits.raise_on_cpu_timer()
        limits.limit_address_space(TOKENIZER.memory_bytes)
        with limits.cpu_time(TOKENIZER.cpu_s):
            data = Path(header["file"]).read_bytes()
            made = LLTokenizer(data.decode(), n_vocab=header["size"], eos_token=header["ends"])
            leading = LeadingSpaces(made)
        limits.lift_address_space_limit()
    except limits.TimeLimitReached:
        return None, {"why": f"reading it takes more than {TOKENIZER.cpu_s:g} s of CPU time"}
    except BaseException as error:  # noqa: BLE001 - a panic of native code on an untrusted file is none of Exception
        return None, {"why": f"{type(error).__name__}: {error}"}
    return (made, leading), {"why": "", "digest": hashlib.sha256(data).hexdigest()}


def serve(control: socket.socket) -> None:
    """Serve until the engine is gone."""
    if (first := receive(control)) is None:
        return
    vocabulary, answer = _tokenizer(first[0])
    send(control, answer)
    if vocabulary is None:
        return
    gc.collect()
    gc.freeze()  # what is there is not touched by collections of forks, so its pages stay shared
    while True:
        order, descriptors, _, _ = socket.recv_fds(control, ORDER.size, 1, socket.MSG_WAITALL)
        if len(order) < ORDER.size:
            return
        what, pid = ORDER.unpack(order)
        if what == WAIT:
            send(control, {"signal": os.WTERMSIG(os.waitpid(pid, 0)[1])})
            continue
        if os.fork() == 0:
            _forked(descriptors[0], control, *vocabulary)
        os.close(descriptors[0])


def _forked(descriptor: int, control: socket.socket, tokenizer: LLTokenizer, leading: LeadingSpaces) -> None:
    try:
        control.close()
        follow(socket.socket(fileno=descriptor), tokenizer, leading)
    finally:
        os._exit(0)  # whatever it was: the engine sees the end of the socket


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the engine drains; its end is ours
    with suppress(ConnectionError):  # the engine has ended, perhaps with answers of ours that it had not read
        serve(socket.socket(fileno=int(sys.argv[1])))
