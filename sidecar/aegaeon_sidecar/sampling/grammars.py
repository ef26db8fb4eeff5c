"""Has constraints compiled, each in a process of its own, and keeps those processes while sequences follow them.

Reading a tokenizer of 128,000 tokens takes 0.7 s and 100 MB, a grammar some milliseconds: the first constrained request
of a model pays for the one, the first of a schema for the other. A grammar that no sequence follows any more is kept
for a while, one that is being compiled is given up at once.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from aegaeon_proto.constraints import BUILD, PROOF, proof_of
from aegaeon_proto.engine.sampling import Constraint
from aegaeon_sidecar.domain.errors import CommandError, EngineError, InvalidError
from aegaeon_sidecar.sampling.grammar_client import GrammarClient, GrammarServer
from aegaeon_sidecar.sampling.guide import Guide

TOKENIZER = "tokenizer.json"
_TOKENIZERS = 4
_IDLE = 16  # grammars that no sequence follows
_FOLLOWED = 96  # grammars at a time; more wait
_SLOTS = 2  # grammars that are compiled at a time, of one share all but one


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The folder of a model's tokenizer, and how many logits the model has."""

    directory: Path
    size: int


@dataclass(frozen=True, slots=True)
class _Tokenizer:
    """A tokenizer by its file as it is, the model's logits and EOS ids."""

    path: Path
    file: tuple[int, ...]
    size: int
    ends: tuple[int, ...]


@dataclass(eq=False, slots=True)
class _Grammar:
    """One constraint for one tokenizer. `waiting`: guides of it that have no client yet; `users`: guides in all."""

    tokenizer: _Tokenizer
    constraint: Constraint
    waiting: list[Future[GrammarClient]] = field(default_factory=list)
    users: int = 0
    client: GrammarClient | None = None

    @property
    def unwanted(self) -> bool:
        return self.users == 0

    @property
    def cheap(self) -> bool:
        """True when it may be kept while no sequence follows it."""
        return self.client is not None and self.client.cheap


class Grammars:
    """Owner of all processes for grammars. What it knows belongs to one thread, to which all others send events."""

    def __init__(self) -> None:
        self._events: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # its put may be interrupted by another
        self._grammars: OrderedDict[tuple[_Tokenizer, Constraint], _Grammar] = OrderedDict()  # last used last
        self._lines: OrderedDict[bytes, deque[_Grammar]] = OrderedDict()  # by share, in the order of their turns
        self._building: Counter[bytes] = Counter()
        self._stopping = False
        self._servers: dict[_Tokenizer, GrammarServer] = {}
        self._starting = threading.Lock()  # guards _servers
        self._builders = ThreadPoolExecutor(_SLOTS, "grammar-builds")
        threading.Thread(target=self._serve, name="grammars", daemon=True).start()

    def guide(self, vocabulary: Vocabulary, constraint: Constraint, ready: Callable[[], None]) -> Guide:
        """A guide at the grammar's beginning. Never blocks. `ready` is called, in another thread, when `Guide.ready`
        is."""
        made: Future[GrammarClient] = Future()
        made.add_done_callback(lambda _: ready())
        guide = Guide(made)
        self._events.put(partial(self._asked, vocabulary, constraint, made, weakref.ref(guide)))
        return guide

    def stop(self) -> None:
        """End the processes; what has not begun is dropped."""
        self._stopping = True
        self._events.put(None)

    def _serve(self) -> None:
        while (event := self._events.get()) is not None:
            event()
        self._builders.shutdown(cancel_futures=True)
        with self._starting:
            for server in self._servers.values():
                server.end()

    # ---- events ------------------------------------------------------------------------------------------------------

    def _asked(
        self, vocabulary: Vocabulary, constraint: Constraint, made: Future[GrammarClient], asking: weakref.ref[Guide]
    ) -> None:
        guide = asking()
        if guide is None:
            return
        try:
            tokenizer = _tokenizer_of(vocabulary, constraint.end_ids)
        except InvalidError as error:
            made.set_exception(error)
            return
        grammar = self._grammar(tokenizer, constraint)
        grammar.users += 1
        weakref.finalize(guide, self._events.put, partial(self._released, grammar, guide.number)).atexit = False
        if grammar.client is None:
            grammar.waiting.append(made)
            self._build_next()
        else:
            made.set_result(grammar.client)

    def _released(self, grammar: _Grammar, number: int) -> None:
        grammar.users -= 1
        if grammar.client is not None:
            grammar.client.gone.append(number)
        self._trim()

    def _built(self, grammar: _Grammar, future: Future[GrammarClient]) -> None:
        self._building -= Counter([grammar.constraint.share])
        waiting, grammar.waiting = grammar.waiting, []
        if (error := future.exception()) is None:
            grammar.client = future.result()
            for made in waiting:
                made.set_result(grammar.client)
        else:
            self._forget(grammar)
            for made in waiting:
                made.set_exception(error if isinstance(error, CommandError) else EngineError(f"compiling: {error}"))
        self._trim()
        self._build_next()

    # ---- what the events do ------------------------------------------------------------------------------------------

    def _grammar(self, tokenizer: _Tokenizer, constraint: Constraint) -> _Grammar:
        """The one that is there, or a new one that waits to be compiled."""
        key = tokenizer, constraint
        grammar = self._grammars.get(key)
        if grammar is None or (grammar.client is not None and not grammar.client.alive):
            grammar = self._grammars[key] = _Grammar(tokenizer, constraint)
            self._lines.setdefault(constraint.share, deque()).append(grammar)
        self._grammars.move_to_end(key)
        return grammar

    def _tell(self, grammar: _Grammar, future: Future[GrammarClient]) -> None:
        self._events.put(partial(self._built, grammar, future))

    def _build_next(self) -> None:
        while (grammar := self._next()) is not None:
            self._building[grammar.constraint.share] += 1
            future = self._builders.submit(self._compiled, grammar)
            future.add_done_callback(partial(self._tell, grammar))

    def _next(self) -> _Grammar | None:
        """The next grammar of the first share in turn that may use another slot."""
        if (
            self._building.total() >= _SLOTS
            or sum(grammar.users > 0 for grammar in self._grammars.values()) >= _FOLLOWED
        ):
            return None
        for share, line in self._lines.items():
            if self._building[share] >= _SLOTS - 1:
                continue
            while line and (grammar := line.popleft()).unwanted:
                self._forget(grammar)
            del self._lines[share]
            if line:
                self._lines[share] = line  # behind all others
            return None if grammar.unwanted else grammar
        return None

    def _trim(self) -> None:
        """End what no sequence follows, but for the last few tokenizers, and the last few grammars that were cheap."""
        idle = [grammar for grammar in self._grammars.values() if grammar.unwanted and grammar.client is not None]
        needed = {grammar.tokenizer for grammar in self._grammars.values()} - {grammar.tokenizer for grammar in idle}
        with self._starting:
            unneeded = [tokenizer for tokenizer in self._servers if tokenizer not in needed]
        kept = set(unneeded[-_TOKENIZERS:])
        for at, grammar in enumerate(reversed(idle)):
            if at >= _IDLE or grammar.tokenizer not in kept | needed or not grammar.cheap:
                self._forget(grammar)
        with self._starting:
            ended = [self._servers.pop(tokenizer) for tokenizer in unneeded if tokenizer not in kept]
        for server in ended:
            server.end()

    def _forget(self, grammar: _Grammar) -> None:
        if self._grammars.get((grammar.tokenizer, grammar.constraint)) is grammar:
            del self._grammars[grammar.tokenizer, grammar.constraint]
        if grammar.client is not None:
            grammar.client.end()

    # ---- in a builder's thread ---------------------------------------------------------------------------------------

    def _compiled(self, grammar: _Grammar) -> GrammarClient:
        """Raises CommandError."""
        server = self._server(grammar.tokenizer)
        proved = grammar.constraint.proof == proof_of(server.digest)  # with this library, for this tokenizer
        client = server.fork()
        try:
            client.compile(grammar.constraint, BUILD if proved else PROOF, lambda: grammar.unwanted or self._stopping)
        except CommandError:
            client.end()
            raise
        return client

    def _server(self, tokenizer: _Tokenizer) -> GrammarServer:
        """Raises InvalidError."""
        with self._starting:
            server = self._servers.pop(tokenizer, None)
            if server is not None and not server.alive:
                server.end()
                server = None
            if server is None:
                server = GrammarServer(tokenizer.path, tokenizer.size, tokenizer.ends)
            self._servers[tokenizer] = server  # as the last used
            return server


def _tokenizer_of(vocabulary: Vocabulary, ends: tuple[int, ...]) -> _Tokenizer:
    """Raises InvalidError."""
    path = vocabulary.directory / TOKENIZER
    try:
        status = path.stat()
    except OSError as error:
        raise InvalidError(f"a constraint needs the model's {TOKENIZER}: {error.strerror}") from error
    file = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return _Tokenizer(path, file, vocabulary.size, ends)
