"""Retries failed models without a request: the owner may have repaired a file, a mount or a server.

Checking a folder costs one stat per file; a retry may read all of them. So a model in a folder is retried when the
folder has changed since the last try and is stable, and a remote model with growing backoff.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from aegaeon_proto.engine.catalog import DirectorySource, ModelPhase, Source
from aegaeon_sidecar.models.states import FileState
from aegaeon_sidecar.weights.models import Adapter, Model
from aegaeon_sidecar.weights.table import ModelTable

log = logging.getLogger(__name__)

LOOK_S = 1.0
FIRST_PAUSE_S = {True: 5.0, False: 1.0}  # by whether the source is far
MOST_PAUSE_S = {True: 300.0, False: 30.0}
WRONG_PAUSE_S = 3600.0  # of what a far source itself has wrong: a try may fetch all of it
_CALM_S = 60.0  # backoff resets after a model was served for this long
_WATCHED = (".json", ".safetensors")

FolderState = tuple[object, ...]


@dataclass(slots=True)
class Tries:
    """Tries of one model. Times are of one clock, seconds.

    `tried_state`, `seen_state`: the state of its folder before the last try, and at the last check.
    """

    far: bool
    jitter: Callable[[], float]
    tried_state: FolderState | None = None
    seen_state: FolderState | None = None
    count: int = 0
    due_s: float = 0.0
    failed_s: float = 0.0

    def due(self, now_s: float, state: FolderState, *, transient: bool, least_s: float = 0.0) -> bool:
        """True when it is time to try again. `transient`: the files need not show the cause of the failure; `least_s`:
        the pause that its server requested."""
        still, self.seen_state, self.failed_s = state == self.seen_state, state, now_s
        if not self.due_s:  # failed just now
            self.due_s = now_s + max(self._pause_s(transient), least_s * (1.0 + abs(1.0 - self.jitter())))
        if now_s < self.due_s or not still:
            return False
        return self.far or transient or state != self.tried_state

    def begin(self) -> None:
        """Note a try in the state seen last. The pause before the next try begins when this one has failed."""
        self.tried_state = self.seen_state
        self.count += 1
        self.due_s = 0.0

    def _pause_s(self, transient: bool) -> float:
        most_s = WRONG_PAUSE_S if self.far and not transient else MOST_PAUSE_S[self.far]
        return min(FIRST_PAUSE_S[self.far] * 2.0 ** min(self.count, 16), most_s) * self.jitter()


class Retries:
    """A thread that watches the failed models. `again` is called for one that is to be tried, lock held; `crashed` with
    the defect that ends the thread."""

    def __init__(
        self, table: ModelTable, again: Callable[[Model | Adapter], None], crashed: Callable[[BaseException], None]
    ) -> None:
        self._table = table
        self._again = again
        self._crashed = crashed
        self._stop = threading.Event()
        self._tries: dict[tuple[str, Source], Tries] = {}  # of another source under the same name nothing is known
        self._thread = threading.Thread(target=self._run, name="retries", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """True when the thread has ended."""
        self._stop.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK_S * _jitter()):
                self._round(time.monotonic())
        except BaseException as error:
            log.exception("failed models are not tried any more; the sidecar ends")
            self._crashed(error)
            raise

    def _round(self, now_s: float) -> None:
        with self._table.monitor.changed:
            known: list[Model | Adapter] = [*self._table.models.values(), *self._table.adapters]
            failed = [model for model in known if model.phase == ModelPhase.FAILED and not model.forgotten]
        for model in failed:
            if not model.trying:
                self._look_after(model, now_s)
            elif (tries := self._tries.get((model.name, model.spec.source))) is not None:
                tries.failed_s = now_s  # a try that takes long serves no request meanwhile
        for key in [key for key, tries in self._tries.items() if now_s - tries.failed_s > _CALM_S]:
            del self._tries[key]

    def _look_after(self, model: Model | Adapter, now_s: float) -> None:
        source = model.spec.source
        tries = self._tries.setdefault((model.name, source), Tries(not isinstance(source, DirectorySource), _jitter))
        state = folder_state(Path(source.directory)) if isinstance(source, DirectorySource) else ()
        if model.permanent:
            if tries.far:
                return
            tries.tried_state = tries.tried_state or state  # as it is, it would fail again
        if not tries.due(now_s, state, transient=model.transient, least_s=model.retry_after_s):
            return
        with self._table.monitor.changed:
            if not model.forgotten and not self._table.monitor.stopping:
                tries.begin()
                log.info("model %s is tried again, time %d", model.name, tries.count)
                self._again(model)


def folder_state(directory: Path) -> FolderState:
    """Return the stat results of a model's files, or for a folder that cannot be listed, the error."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in entries if entry.name.endswith(_WATCHED))
        return tuple((name, FileState.of((directory / name).stat())) for name in names)
    except OSError as error:
        return (error.errno,)
    except ValueError as error:  # what is no path at all
        return (str(error),)


def _jitter() -> float:
    return random.uniform(0.8, 1.2)
