"""The host tier's files in a folder that the sidecars of a node share. Each incarnation of an instance has one segment
per rank, and one file of leases.

The names carry instance and incarnation, so no two incarnations share a file. The process that made the files holds
both while it lives; the sweeper removes orphaned ones.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aegaeon_native import CudaDevice, NativeError, SlabPool
from aegaeon_sidecar.domain.errors import UnknownError
from aegaeon_sidecar.memory.gpu import Gpus
from aegaeon_sidecar.memory.leases import Borrowing

log = logging.getLogger(__name__)

SEGMENT_SUFFIX = ".kv"
LEASES_SUFFIX = ".leases"


def segment_path(folder: Path, instance: str, incarnation: str) -> Path:
    """The file of this incarnation's host tier."""
    return folder / f"{instance}@{incarnation}{SEGMENT_SUFFIX}"


def segment_files(segment: Path, ranks: int) -> list[Path]:
    """One for each rank, with its part of every block. The first is the segment that handles name."""
    stem = segment.name.removesuffix(SEGMENT_SUFFIX)
    return [segment, *(segment.with_name(f"{stem}.{rank}{SEGMENT_SUFFIX}") for rank in range(1, ranks))]


def leases_path(segment: Path) -> Path:
    """The table that says which blocks of the segment are lent."""
    return segment.with_name(segment.name.removesuffix(SEGMENT_SUFFIX) + LEASES_SUFFIX)


@dataclass(slots=True)
class _Attached:
    pool: SlabPool
    leases: Borrowing
    readers: int = 0

    def close(self) -> None:
        self.pool.close()
        self.leases.close()


class Attachments:
    """Other sidecars' host tiers, attached when first needed. Thread-safe."""

    def __init__(self, folder: Path, gpus: Gpus = (None,)) -> None:
        """`gpus`: what is adopted goes there, so the pages of a segment are locked for them when it is attached."""
        self._folder = folder
        self._gpus = gpus
        self._lock = threading.Lock()
        self._attached: dict[str, _Attached] = {}

    @contextmanager
    def reading(self, segment: str, slot: int, generation: int) -> Iterator[SlabPool]:
        """The pool of a segment, the blocks lent by this lease kept as they are meanwhile.

        Raises UnknownError when the segment is gone, or of other ranks than ours, StaleError when the lease is over.
        """
        with self._lock:
            attached = self._attach(segment)
            attached.readers += 1
        try:
            with attached.leases.reading(slot, generation):
                yield attached.pool
        finally:
            with self._lock:
                attached.readers -= 1

    def drop_removed(self) -> None:
        """Let go of the memory of segments that are gone and not read here any more."""
        with self._lock:
            for segment, attached in list(self._attached.items()):
                if not attached.readers and not (self._folder / segment).exists():
                    self._attached.pop(segment).close()

    def close(self) -> None:
        """Only when no reader is left."""
        with self._lock:
            for attached in self._attached.values():
                attached.close()
            self._attached.clear()

    def _attach(self, segment: str) -> _Attached:
        path = self._folder / segment
        if path.parent != self._folder or not path.is_file():
            raise UnknownError(f"segment {segment} is not in {self._folder}; its sidecar has ended")
        if segment not in self._attached:
            try:
                self._attached[segment] = _Attached(self._pool(path), Borrowing(leases_path(path)))
            except (NativeError, OSError) as error:
                raise UnknownError(f"segment {segment} cannot be attached: {error}") from error
        return self._attached[segment]

    def _pool(self, segment: Path) -> SlabPool:
        ranks = zip(segment_files(segment, len(self._gpus)), self._gpus, strict=True)
        return SlabPool.gang([_attach(file, gpu) for file, gpu in ranks])


def _attach(file: Path, gpu: CudaDevice | None) -> SlabPool:
    try:
        return SlabPool.attach(str(file), gpu)
    except NativeError as error:
        if gpu is None:
            raise
        log.warning("%s is adopted from at the rate of pages that are not locked: %s", file.name, error)
        return SlabPool.attach(str(file))
