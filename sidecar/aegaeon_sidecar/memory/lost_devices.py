"""GPUs that were lost: notes that a process leaves for later processes of its node.

A file for each GPU, named by its UUID, lies in the folder of segments, which outlives process, container and pod. A GPU
that was lost twice within ten minutes is suspect until a probe finds it healthy, or a person removes its file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from threading import Lock

from aegaeon_native.leases import locked
from aegaeon_sidecar.domain.sticky import loss_in

log = logging.getLogger(__name__)

LOST_SUFFIX = ".lost"
WITHIN_S = 600.0  # of two losses that make a GPU suspect
_KEPT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Suspect:
    """A GPU to be left alone: its last error, and how often it was lost in the hour before that."""

    uuid: str
    error: str
    losses: int
    file: Path

    def __str__(self) -> str:
        return f"GPU {self.uuid} was lost {self.losses} times, the last time with: {self.error}"


@dataclass(slots=True)
class _Record:
    """The record of one GPU: (unix seconds, error) of its losses in order, and the time when a probe found it
    healthy."""

    losses: list[tuple[float, str]] = field(default_factory=list)
    healthy: float = 0.0

    @property
    def is_suspect(self) -> bool:
        since = [at for at, _ in self.losses if at > self.healthy]
        return any(second - first <= WITHIN_S for first, second in pairwise(since))


def suspects_in(folder: Path) -> list[Suspect]:
    """All GPUs that processes with this folder of segments leave alone."""
    records = ((path, _read(path)) for path in sorted(folder.glob(f"*{LOST_SUFFIX}")))
    return [_suspect(path, record) for path, record in records if record.is_suspect]


class LostDevices:
    """The lost GPUs of one engine, by `uuids`; without any, a CPU, nothing is noted. `clock`: unix seconds."""

    def __init__(self, folder: Path, uuids: Sequence[str], clock: Callable[[], float]) -> None:
        self._folder, self._clock = folder, clock
        self._files = [folder / f"{uuid}{LOST_SUFFIX}" for uuid in uuids]
        self._guard = Lock()
        self._noted = False

    def suspect(self) -> Suspect | None:
        """The first of them that must not be used."""
        return next((each for each in suspects_in(self._folder) if each.file in self._files), None)

    def note(self, error: BaseException) -> None:
        """A process that ends with this error has lost its GPUs, if the error says so; once, from any thread.

        Of several GPUs the error does not tell which one failed.
        """
        text = loss_in(error)
        with self._guard:
            if not text or self._noted:
                return
            self._noted = True
        for file in self._files:
            try:
                with self._changing(file) as record:
                    now = self._clock()
                    record.losses = [loss for loss in record.losses if now - loss[0] < _KEPT_S] + [(now, text)]
            except OSError as failure:  # the process ends with what it lost the GPU by, whether or not that is noted
                log.error("%s: the loss of this GPU cannot be recorded: %s", file, failure)

    def pardon(self) -> None:
        """A probe has found them healthy: losses of before make none of them suspect any more."""
        for file in self._files:
            with self._changing(file) as record:
                record.healthy = self._clock()

    @contextmanager
    def _changing(self, file: Path) -> Iterator[_Record]:
        with locked(self._folder):
            record = _read(file)
            yield record
            draft = file.with_suffix(f"{LOST_SUFFIX}.new")
            draft.write_text(json.dumps(asdict(record)), "utf-8")
            draft.replace(file)


def _read(file: Path) -> _Record:
    """None is as good as an empty one, and so is what no process of ours wrote: no engine waits for its repair."""
    try:
        kept = json.loads(file.read_text("utf-8"))
        return _Record([(float(at), str(error)) for at, error in kept["losses"]], float(kept["healthy"]))
    except FileNotFoundError:
        return _Record()
    except (ValueError, TypeError, KeyError) as error:
        log.warning("%s is not a record of losses, and is ignored: %s", file, error)
        return _Record()


def _suspect(file: Path, record: _Record) -> Suspect:
    return Suspect(file.name.removesuffix(LOST_SUFFIX), record.losses[-1][1], len(record.losses), file)
