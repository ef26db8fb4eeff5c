"""Compiles constraints, in threads of its own, and keeps what it compiled.

A tokenizer of 128,000 tokens takes 0.7 s and 100 MB, a grammar some milliseconds: the first constrained request of a
model pays for the one, the first of a schema for the other. Both are kept by content, and grammars with the tokenizer
that they were compiled for: each of them holds it in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from llguidance import LLMatcher, LLTokenizer

from aegaeon_proto.constraints import LIMITS, grammar_of
from aegaeon_sidecar.domain.errors import InvalidError
from aegaeon_sidecar.domain.sequences import Constraint
from aegaeon_sidecar.sampling.guide import Guide, check

TOKENIZER = "tokenizer.json"
_TOKENIZERS = 4
_MATCHERS = 64  # of each
_THREADS = 2

Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The folder of a model's tokenizer, and how many logits the model has."""

    directory: Path
    size: int


class Kept(Generic[Key, Value]):
    """The `most` latest used values. Two threads that miss at the same time both make one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of this key; `make` may raise."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = make()
        with self._lock:
            self._values[key] = value
            while len(self._values) > self._most:
                self._values.popitem(last=False)
        return value


_TokenizerKey = tuple[tuple[int, ...], int, tuple[int, ...]]


class _Compiler:
    """Of one tokenizer, with the grammars that were compiled for it."""

    def __init__(self, tokenizer: LLTokenizer) -> None:
        self._tokenizer = tokenizer
        self._matchers: Kept[Constraint, LLMatcher] = Kept(_MATCHERS)

    def matcher(self, constraint: Constraint) -> LLMatcher:
        """Raises InvalidError."""
        return self._matchers.get(constraint, lambda: _compiled(self._tokenizer, constraint))


class Grammars:
    """Owner of the compiling threads. `guide` may be called with the engine's lock held; the rest is theirs."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, "grammars")
        self._compilers: Kept[_TokenizerKey, _Compiler] = Kept(_TOKENIZERS)

    def guide(self, vocabulary: Vocabulary, constraint: Constraint, ready: Callable[[], None]) -> Guide:
        """A guide at the grammar's beginning. `ready` is called, in another thread or this, when `Guide.ready` is."""
        made = self._threads.submit(self._guarded, vocabulary, constraint)
        made.add_done_callback(lambda _: ready())
        return Guide(made)

    def stop(self) -> None:
        """End the threads; what they have not begun is dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _guarded(self, vocabulary: Vocabulary, constraint: Constraint) -> LLMatcher:
        """Raises InvalidError, whatever the library makes of an untrusted file and an untrusted grammar."""
        try:
            return self._matcher(vocabulary, constraint)
        except InvalidError:
            raise
        except BaseException as error:
            message = f"the constraint cannot be compiled: {type(error).__name__}: {str(error)[:500]}"
            raise InvalidError(message) from error

    def _matcher(self, vocabulary: Vocabulary, constraint: Constraint) -> LLMatcher:
        """Raises InvalidError."""
        path = vocabulary.directory / TOKENIZER
        try:
            status = path.stat()
        except OSError as error:
            raise InvalidError(f"a constraint needs the model's {TOKENIZER}: {error.strerror}") from error
        file = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        key = (file, vocabulary.size, constraint.end_ids)
        made = self._compilers.get(key, lambda: _Compiler(_tokenizer(path, vocabulary.size, constraint.end_ids)))
        return made.matcher(constraint)


def _tokenizer(path: Path, size: int, end_ids: tuple[int, ...]) -> LLTokenizer:
    try:
        return LLTokenizer(path.read_text(), n_vocab=size, eos_token=list(end_ids))
    except (OSError, ValueError, OverflowError) as error:
        raise InvalidError(f"constraints cannot be used with the model's {TOKENIZER}: {str(error)[:500]}") from error


def _compiled(tokenizer: LLTokenizer, constraint: Constraint) -> LLMatcher:
    if constraint.kind is None:
        raise InvalidError("the constraint is of a kind that this version does not know")
    try:
        grammar = grammar_of(constraint.kind, constraint.text)
    except ValueError as error:
        raise InvalidError(f"the constraint cannot be compiled: {error}") from error
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    check(matcher)
    return matcher
