"""The sweeper of a node: garbage collection of orphaned segments, by the process that holds the folder's lock.

Every sidecar sweeps at its start and every SWEEP_S, and an administrator with `aegaeon doctor --sweep`. This module
alone decides what to remove: files whose owner has died.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from aegaeon_native import EventTable, NativeError, SlabPool
from aegaeon_native.leases import ByteLocks, holders, is_held, locked
from aegaeon_sidecar.memory.lost_devices import LOST_SUFFIX
from aegaeon_sidecar.memory.segments import LEASES_SUFFIX, SEGMENT_SUFFIX
from aegaeon_sidecar.weights.deaths import DEATHS_NAME, FAULT_SUFFIX, RUNNING_SUFFIX
from aegaeon_sidecar.weights.image_folder import DRAFT_SUFFIX, IMAGE_SUFFIX, KNOWN_SUFFIX, LOCK_NAME, PROOF_SUFFIX

log = logging.getLogger(__name__)

SWEEP_S = 10.0
_STOP_S = 0.5


class Kind(Enum):
    """Kinds of files in the folder of segments. Values are for people."""

    SEGMENT = "segment"  # owned: held by its sidecar for life
    LEASES = "leases"  # owned: held by its sidecar for life
    DRAFT = "half-filled image"  # owned: held by the sidecar that fills it
    IMAGE = "image"  # the node's: stays until it is evicted; pinned by sidecars
    NOTE = "note"  # the node's: files that were read before, proofs, what ended engines; the locks of cache and run
    OTHER = "unknown"

    @property
    def owned(self) -> bool:
        """True when the file is useless after its owner has died."""
        return self in (Kind.SEGMENT, Kind.LEASES, Kind.DRAFT)


_KINDS = {
    SEGMENT_SUFFIX: Kind.SEGMENT,
    LEASES_SUFFIX: Kind.LEASES,
    DRAFT_SUFFIX: Kind.DRAFT,
    IMAGE_SUFFIX: Kind.IMAGE,
    **dict.fromkeys((KNOWN_SUFFIX, PROOF_SUFFIX, RUNNING_SUFFIX, FAULT_SUFFIX, LOST_SUFFIX), Kind.NOTE),
    Path(DEATHS_NAME).suffix: Kind.NOTE,
    Path(LOCK_NAME).suffix: Kind.NOTE,
}


@dataclass(frozen=True, slots=True)
class SharedFile:
    """One file. `pids`: the processes that hold or pin it, as far as this process can see them."""

    path: Path
    kind: Kind
    nbytes: int
    held: bool
    pids: tuple[int, ...]
    detail: str

    @property
    def orphaned(self) -> bool:
        """Orphaned: its owner is dead."""
        return self.kind.owned and not self.held


def survey(folder: Path) -> list[SharedFile]:
    """Every file of a folder of segments. No process makes or removes one meanwhile. Raises OSError."""
    cache = folder / LOCK_NAME
    with locked(folder), locked(cache) if cache.exists() else nullcontext():
        return [_look(path) for path in sorted(folder.iterdir()) if not path.is_dir()]


def sweep(folder: Path) -> list[Path]:
    """Remove files of dead processes from a folder of segments; returns them. Raises OSError."""
    with locked(folder), locked(folder / LOCK_NAME):  # drafts are made under it
        return _remove_orphans(folder)


def _remove_orphans(folder: Path) -> list[Path]:
    orphans = [path for path in folder.iterdir() if _kind(path).owned and not is_held(path)]
    for path in orphans:
        path.unlink(missing_ok=True)
    return orphans


def _kind(path: Path) -> Kind:
    return _KINDS.get(path.suffix, Kind.OTHER)


def _look(path: Path) -> SharedFile:
    kind, stat = _kind(path), path.lstat()
    if path.is_symlink() or kind is Kind.NOTE:
        return SharedFile(path, kind, stat.st_size, False, (), "")
    return SharedFile(path, kind, stat.st_size, is_held(path), tuple(holders(path)), _detail(path, kind))


def _detail(path: Path, kind: Kind) -> str:
    try:
        if kind is Kind.SEGMENT:
            pool = SlabPool.attach(str(path))
            used = ", ".join(_slabs_in_memory(path, pool.slab_bytes, pool.total)) or "none"
            return f"{pool.total} slabs of {pool.slab_bytes} bytes, with memory behind them: {used}"
        if kind is Kind.LEASES:
            return _leases(path)
    except NativeError as error:
        return f"never finished ({error})"
    return ""


def _slabs_in_memory(path: Path, slab_bytes: int, slabs: int) -> Iterator[str]:
    """Runs of slabs, `3-5` or `7`, that were written at least once; the others take no memory yet. Raises OSError."""
    with path.open("rb") as file:
        end = 0
        while end < slabs * slab_bytes:
            try:
                begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    return
                raise
            end = os.lseek(file.fileno(), begin, os.SEEK_HOLE)
            first, last = begin // slab_bytes, min((end - 1) // slab_bytes, slabs - 1)
            if first <= last:
                yield f"{first}-{last}" if first < last else str(first)


def _leases(path: Path) -> str:
    table, locks = EventTable.attach(str(path)), ByteLocks(path)
    try:
        read = locks.shared(path.stat().st_size)
        slots = f" (leases {', '.join(map(str, read))})" if read else ""
        return f"{table.in_use} sequences lent, {len(read)} being read{slots}"
    finally:
        locks.close()
        table.close()


class Sweeper:
    """Sweeps in a thread of its own and calls `also`, the sidecar's periodic work; `crashed` is called with the defect
    that ends the thread."""

    def __init__(self, folder: Path, also: Callable[[], None], crashed: Callable[[BaseException], None]) -> None:
        self._folder = folder
        self._also = also
        self._crashed = crashed
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sweeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current sweep; a sweep that waits for a hung process's lock ends with this process."""
        self._stop.set()
        self._thread.join(_STOP_S)

    def _run(self) -> None:
        try:
            while not self._stop.wait(SWEEP_S):
                self._also()
                self._sweep()
        except BaseException as error:
            log.exception("the periodic sweep failed; the sidecar ends")
            self._crashed(error)
            raise

    def _sweep(self) -> None:
        try:
            swept = sweep(self._folder)
        except OSError as error:
            log.warning("%s cannot be swept: %s", self._folder, error)
            return
        if swept:
            log.info("removed files of dead processes: %s", ", ".join(path.name for path in swept))
