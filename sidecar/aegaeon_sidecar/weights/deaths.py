"""Models that end engines: what a process computed when a signal of its own ended it, as its successor reads it.

A process marks the model whose turn it runs, the one before it, and the one that is described or proved, in a file that
outlives it; Python's fault handler writes the signal beside it. A model that was there at two deaths, and no other as
often, is Failed with the signal. Where several were there, those that were not computed wait until that one has run
without them, or no request asked for it. Processes ended from outside (SIGKILL, SIGTERM) say nothing of a model.
"""

from __future__ import annotations

import faulthandler
import json
import logging
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from mmap import mmap
from pathlib import Path

from aegaeon_native.leases import locked
from aegaeon_sidecar.domain.errors import LethalError, SuspectError

log = logging.getLogger(__name__)

RUNNING_SUFFIX, FAULT_SUFFIX, DEATHS_NAME = ".running", ".fault", "models.deaths"
DEADLY = 2  # deaths
CALM_S = 30.0  # that a suspect runs without another before it is cleared
MOST_WAIT_S = 120.0  # for one that no request asks for
_MARK_BYTES = 512  # of a name
_COMPUTED, _PREPARED, _BEFORE = range(3)
_SIGNALS = {  # the handler's words, and the signal that a container's status names
    "Segmentation fault": "SIGSEGV",
    "Aborted": "SIGABRT",
    "Bus error": "SIGBUS",
    "Floating-point exception": "SIGFPE",
    "Illegal instruction": "SIGILL",
}


@dataclass(slots=True)
class Books:
    """Records by model: the number of `deaths` with it, the suspect that it `waits` for, and the signal that it
    `failed` with."""

    deaths: dict[str, int] = field(default_factory=dict)
    waits: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def died(self, suspects: Seq[str], signal: str) -> None:
        """A process ended by itself. `suspects`: the one that it computed first."""
        if not self.failed.keys().isdisjoint(suspects):
            return  # a known culprit, still on another engine of the node: it is the cause
        for model in suspects:
            self.deaths[model] = self.deaths.get(model, 0) + 1
        most = max(self.deaths[model] for model in suspects)
        worst = [model for model in suspects if self.deaths[model] == most]
        if most >= DEADLY and len(worst) == 1:
            for model in suspects:
                self.clear(model)  # the cause is known
            self.failed[worst[0]] = signal
            return
        first = worst[0]
        self.waits.pop(first, None)
        self.waits |= {model: first for model in suspects if model != first}

    def clear(self, model: str) -> None:
        """Clear the model of suspicion, and release the models that wait for it."""
        self.deaths.pop(model, None)
        self.failed.pop(model, None)
        self.waits = {waiting: suspect for waiting, suspect in self.waits.items() if model not in (waiting, suspect)}


class Deaths:
    """Marks of one engine process; the books belong to its node. Thread-safe: the compute lane marks, the fetcher
    asks."""

    def __init__(self, folder: Path, instance: str, clock: Callable[[], float]) -> None:
        """Reads what the process before this one left, and begins its own marks."""
        self._folder, self._clock = folder, clock
        self._running = folder / f"{instance}{RUNNING_SUFFIX}"
        self._fault = folder / f"{instance}{FAULT_SUFFIX}"
        self._last = self._before = ""
        self._start = clock()
        self._began: dict[str, float] = {}  # seconds at which each model was first computed here
        self._investigate()
        self._running.write_bytes(bytes(3 * _MARK_BYTES))
        with self._running.open("r+b") as file:
            self._marks = mmap(file.fileno(), 0)

    def watch(self) -> None:
        """Signals of this process are written down from here on."""
        faulthandler.enable(self._fault.open("wb"))

    @contextmanager
    def computing(self, model: str) -> Iterator[None]:
        """A turn of this model."""
        if model != self._last:
            self._before, self._last = self._last, model
            self._mark(_BEFORE, self._before)
        self._began.setdefault(model, self._clock())
        self._mark(_COMPUTED, model)
        try:
            yield
        finally:
            self._mark(_COMPUTED, "")

    @contextmanager
    def preparing(self, model: str) -> Iterator[None]:
        """Mark the model while it is described or proved."""
        self._mark(_PREPARED, model)
        try:
            yield
        finally:
            self._mark(_PREPARED, "")

    def check(self, model: str) -> None:
        """Raises LethalError for a model that ends engines, SuspectError for one that has to wait."""
        with self._books() as books:
            if signal := books.failed.get(model):
                raise LethalError(
                    f"engines that computed it were ended {DEADLY} times by {signal}; it is tried again when its files "
                    "change, or on request"
                )
            first = books.waits.get(model)
            if first is not None and self._is_over(first):
                books.clear(first)
                first = None
        if first is not None:
            raise SuspectError(f"an engine that computed it or {first} was ended by a signal; {first} runs alone first")

    def _is_over(self, first: str) -> bool:
        """The time in which this suspect runs without another."""
        now = self._clock()
        return now - self._start >= MOST_WAIT_S or now - self._began.get(first, now) >= CALM_S

    def forgive(self, model: str) -> None:
        """Clear the model: it is tried as if it had never been computed."""
        with self._books() as books:
            books.clear(model)

    def close(self) -> None:
        """The process ends in peace."""
        self._marks.close()
        for path in (self._running, self._fault):
            path.unlink(missing_ok=True)

    def _mark(self, place: int, model: str) -> None:
        name = model.encode()[: _MARK_BYTES - 1]
        self._marks[place * _MARK_BYTES : (place + 1) * _MARK_BYTES] = name.ljust(_MARK_BYTES, b"\0")

    def _investigate(self) -> None:
        signal, suspects = self._signal(), self._suspects()
        if signal is None or not suspects:
            return
        log.error("the engine before this one was ended by %s while it computed %s", signal, ", ".join(suspects))
        with self._books() as books:
            books.died(suspects, signal)

    def _signal(self) -> str | None:
        """The signal that ended the previous process. Copies that process's last output to this one's log."""
        written = self._fault.read_text("utf-8", "replace") if self._fault.exists() else ""
        self._fault.unlink(missing_ok=True)
        if not written:
            return None
        log.error("the engine before this one: %s", written.strip())
        words = written.partition("\n")[0].removeprefix("Fatal Python error: ")
        return _SIGNALS.get(words)

    def _suspects(self) -> list[str]:
        """The suspects: the model of the turn, the described one, and that of the turn before; each once. None at
        rest."""
        marks = self._running.read_bytes() if self._running.exists() else b""
        parts = (marks[at : at + _MARK_BYTES] for at in range(0, len(marks), _MARK_BYTES))
        names = [part.rstrip(b"\0").decode("utf-8", "replace") for part in parts]
        active = [name for name in names[:_BEFORE] if name]
        if names and names[_COMPUTED]:
            active += [name for name in names[_BEFORE:] if name]
        return list(dict.fromkeys(active))

    @contextmanager
    def _books(self) -> Iterator[Books]:
        """The current books of this node; written if they change."""
        path = self._folder / DEATHS_NAME
        with locked(self._folder):
            before = path.read_text("utf-8") if path.exists() else "{}"
            books = Books(**json.loads(before))
            yield books
            after = json.dumps(asdict(books))
            if after != before and (books != Books() or path.exists()):
                path.write_text(after, "utf-8")
