"""Process-wide state while vLLM builds or runs a model: its current configuration, torch's default dtype, the class of
parameters, the forward context.

A build takes seconds where weights are transformed. It lets steps of other models run in between: before each tensor
and each layer it puts back what it has set, and the threads that wait go first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from threading import Lock, get_ident
from typing import Any, Self, TypeVar

Item = TypeVar("Item")


class FairLock:
    """Threads get it in the order in which they asked: one that gives it back and asks again comes last.

    A thread that has it may take it again, and then has to give it back as often.
    """

    def __init__(self) -> None:
        self._guard = Lock()
        self._waiting: deque[tuple[int, Lock]] = deque()
        self._owner, self._depth = 0, 0

    def __enter__(self) -> None:
        me = get_ident()
        with self._guard:
            if self._depth == 0 or self._owner == me:
                self._owner, self._depth = me, self._depth + 1
                return
            turn = Lock()
            turn.acquire()
            self._waiting.append((me, turn))
        turn.acquire()  # the thread that had it has made this one the owner

    def __exit__(self, *_: object) -> None:
        with self._guard:
            self._depth -= 1
            if self._depth == 0 and self._waiting:
                self._owner, turn = self._waiting.popleft()
                self._depth = 1
                turn.release()


EXCLUSIVE = FairLock()


class Building:
    """Holds EXCLUSIVE, with `settings` made anew whenever it is taken: contexts that hold for the whole process.

    A thread that builds holds it once, or there is no in between.
    """

    def __init__(self, *settings: Callable[[], AbstractContextManager[Any]]) -> None:
        self._settings = settings
        self._set = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for setting in (lambda: EXCLUSIVE, *self._settings):
                stack.enter_context(setting())
            self._set = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._set.close()

    def apart(self, items: Iterable[Item]) -> Iterator[Item]:
        """The items, each looked up while nothing is set and others run."""
        remaining, end = iter(items), object()
        while True:
            self.__exit__()
            try:
                item: Any = next(remaining, end)
            finally:
                self.__enter__()
            if item is end:
                return
            yield item
