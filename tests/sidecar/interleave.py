"""Every interleaving of a few actors, each of which may be killed at every step: real code, run step by step.

An actor is a function on a thread of its own; it goes on only when it is its turn, from one `step` to the next. The
explorer runs it all again for every order of turns (depth first), and where asked for every way to kill one actor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

PATIENCE_S = 60.0
_ALWAYS: Callable[[], bool] = lambda: True  # noqa: E731 - a default that reads as what it is


class Killed(BaseException):
    """Ends an actor where it stands; none of its further steps has any effect."""


@dataclass(eq=False)
class Actor:
    """`may_go`: whether it can take its next step (a lock that it waits for is free)."""

    name: str
    body: Callable[[], None]
    thread: threading.Thread | None = None
    turn: threading.Event = field(default_factory=threading.Event)
    may_go: Callable[[], bool] = _ALWAYS
    over: bool = False
    killed: bool = False
    error: BaseException | None = None


class Run:
    """One order of turns. `choices`: what was chosen at each point, and out of how many."""

    def __init__(self, script: list[int]) -> None:
        self.choices: list[tuple[int, int]] = []
        self.trace: list[str] = []
        self.victim: str | None = None
        self._script = script
        self._actors: list[Actor] = []
        self._back = threading.Event()

    def actor(self, name: str, body: Callable[[], None]) -> None:
        """Add an actor; nothing of it runs yet."""
        self._actors.append(Actor(name, body))

    def step(self, what: str, may_go: Callable[[], bool] = _ALWAYS) -> None:
        """What follows, up to the next step, is atomic. Outside of actors it does nothing."""
        me = next((a for a in self._actors if a.thread is threading.current_thread()), None)
        if me is None:
            return
        if me.killed:
            raise Killed
        me.may_go = may_go
        self._back.set()
        assert me.turn.wait(PATIENCE_S)
        me.turn.clear()
        if me.killed:
            raise Killed
        self.trace.append(f"{me.name}: {what}")

    def play(self, mortal: tuple[str, ...], on_kill: Callable[[str], None]) -> None:
        """Run all actors to their ends. One of `mortal` may be killed at any point; `on_kill` acts as the kernel."""
        for actor in self._actors:
            actor.thread = threading.Thread(target=self._live, args=(actor,), daemon=True)
            actor.thread.start()
            self._wait()
        while living := [a for a in self._actors if not a.over]:
            moves = [(a, False) for a in living if a.may_go()]
            assert moves, f"deadlock: {self.trace}"
            if self.victim is None:
                moves += [(a, True) for a in living if a.name in mortal]
            actor, kill = moves[self._choose(len(moves))]
            if kill:
                self._kill(actor, on_kill)
            else:
                self._go(actor)
        for actor in self._actors:
            if actor.error is not None:
                raise AssertionError(f"{actor.name} failed after {self.trace}") from actor.error

    def _choose(self, count: int) -> int:
        at = len(self.choices)
        choice = self._script[at] if at < len(self._script) else 0
        self.choices.append((choice, count))
        return choice

    def _kill(self, actor: Actor, on_kill: Callable[[str], None]) -> None:
        self.victim = actor.name
        actor.killed = True
        self.trace.append(f"{actor.name} is killed")
        self._go(actor)
        on_kill(actor.name)

    def _go(self, actor: Actor) -> None:
        actor.turn.set()
        self._wait()

    def _wait(self) -> None:
        assert self._back.wait(PATIENCE_S), f"stuck after {self.trace}"
        self._back.clear()

    def _live(self, actor: Actor) -> None:
        try:
            actor.body()
        except Killed:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again by `play`, on the test's thread
            actor.error = error
        actor.over = True
        self._back.set()


def every_run() -> Iterator[Run]:
    """Depth first over all choices: play each run that comes, completely, before asking for the next."""
    script: list[int] = []
    while True:
        run = Run(script)
        yield run
        choices = run.choices
        while choices and choices[-1][0] + 1 == choices[-1][1]:
            choices.pop()
        if not choices:
            return
        script = [choice for choice, _ in choices[:-1]] + [choices[-1][0] + 1]
