"""The stage ring: a few page-aligned slots between files and memory, so that a load needs no second copy of a model.

Each slot has a thread of its own: it reads a chunk (past the page cache where the file system allows), hashes it, has a
copy lane drain it to its places, and takes the next chunk. While one slot drains, the others read.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from aegaeon_native import CopyLane, EventTable
from aegaeon_sidecar.errors import EngineError, FillCancelledError, WeightsError

CHUNK_BYTES = 4 << 20  # chunk and depth: measured by benchmarks/load.py
DEPTH = 4
PAGE = 4096
OVERHANG_BYTES = 4  # the last item of a chunk may end in the next one
FILE_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_COPY_S = 60.0
_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

Bytes = NDArray[np.uint8]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Part:
    """`nbytes` of a tensor at byte `at` of the file, of `dtype` (F32, F16, BF16); they go to byte `to` of the image."""

    at: int
    nbytes: int
    dtype: str
    to: int


@dataclass(frozen=True, slots=True)
class Read:
    """One chunk of a file: bytes [begin, begin + nbytes) are hashed, `parts` end within OVERHANG_BYTES of it."""

    file: Path
    begin: int
    nbytes: int
    parts: tuple[Part, ...]

    @property
    def extent(self) -> int:
        """Bytes needed from `begin`."""
        return max([self.nbytes, *(part.at + part.nbytes - self.begin for part in self.parts)])


@dataclass(slots=True)
class Job:
    """What the slots' threads share: the next chunk, what is done, and whether to stop.

    `progress(done, total)` in bytes of the files; `cancelled` is asked before each chunk. Calls do not overlap.
    """

    reads: Sequence[Read]
    destinations: Sequence[Bytes]
    dtype: torch.dtype
    hashed: bool
    progress: Progress
    cancelled: Callable[[], bool]
    digests: list[bytes] = field(init=False)
    stopped: bool = field(default=False, init=False)
    _next: int = field(default=0, init=False)
    _done: int = field(default=0, init=False)
    _total: int = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def __post_init__(self) -> None:
        self.digests = [b""] * len(self.reads)
        self._total = sum(read.nbytes for read in self.reads)

    def take(self) -> Iterator[tuple[int, Read]]:
        """Chunks for one thread until none is left. Raises FillCancelledError."""
        while not self.stopped:
            with self._lock:
                index = self._next
                if index == len(self.reads):
                    return
                if self.cancelled():
                    raise FillCancelledError(f"{self.reads[index].file}: reading was cancelled")
                self._next += 1
            yield index, self.reads[index]

    def done(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            self.progress(self._done, self._total)


class StageRing:
    """`depth` slots of `chunk_bytes` and the lane that drains them. One `run` at a time; `close` ends the lane."""

    def __init__(self, name: str, chunk_bytes: int = CHUNK_BYTES, depth: int = DEPTH) -> None:
        self.chunk_bytes = chunk_bytes
        self._slots = [mmap.mmap(-1, chunk_bytes + 3 * PAGE, flags=_PRIVATE) for _ in range(depth)]
        self._lane = CopyLane(name, chunk_bytes)
        self._events = EventTable.private(2 * depth + 2)  # the lane lets go of one a moment after it happened

    def run(self, job: Job) -> None:
        """Carry out every read into every destination, which are whole when it returns; `job.digests` are SHA-256.

        Raises FillCancelledError, and WeightsError when a file ends early or cannot be read: destinations are then half
        written, and no copy into them is under way.
        """
        workers = min(len(self._slots), len(job.reads))
        with ExitStack() as files, ThreadPoolExecutor(max(workers, 1), "stage") as threads:
            opened = {path: files.enter_context(_File(path)) for path in {read.file for read in job.reads}}
            slots = [threads.submit(self._work, slot, job, opened) for slot in self._slots[:workers]]
        for slot in slots:
            slot.result()

    def close(self) -> None:
        self._lane.close()
        self._events.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _work(self, slot: mmap.mmap, job: Job, files: dict[Path, _File]) -> None:
        """One slot's life: read, hash, drain, again."""
        try:
            for index, read in job.take():
                data = files[read.file].read(slot, read)
                if job.hashed:
                    job.digests[index] = sha256(data[: read.nbytes].data).digest()
                self._drain(read, data, job)
                job.done(read.nbytes)
        except BaseException:
            job.stopped = True
            raise

    def _drain(self, read: Read, data: Bytes, job: Job) -> None:
        sources = []  # converted ones live until they are copied
        for part in read.parts:
            source = data[part.at - read.begin :][: part.nbytes]
            if FILE_DTYPES[part.dtype] != job.dtype:
                source = _convert(source, FILE_DTYPES[part.dtype], job.dtype)
            sources.append(source)
            for target in job.destinations:
                self._lane.copy(target.ctypes.data + part.to, source.ctypes.data, source.nbytes)
        event = self._events.event()
        self._lane.record(event)
        if not event.wait(_COPY_S):
            raise EngineError(f"{read.file}: a copy did not end within {_COPY_S:g} s; the machine is overloaded")


class _File:
    """A file read with O_DIRECT, or without where its file system has no such thing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1

    def __enter__(self) -> Self:
        try:
            self._handle = _open_direct(self._path)
        except OSError as error:
            raise WeightsError(f"{self._path}: cannot be read: {error.strerror}; fetch the model again") from error
        return self

    def __exit__(self, *failure: object) -> None:
        os.close(self._handle)

    def read(self, slot: mmap.mmap, read: Read) -> Bytes:
        """The read's bytes, overhang included, as a view of the slot. Raises WeightsError."""
        skew = read.begin % PAGE
        needed = skew + read.extent
        wanted = -(-needed // PAGE) * PAGE
        try:
            got = _read(self._handle, memoryview(slot)[:wanted], read.begin - skew)
        except OSError as error:
            raise WeightsError(f"{self._path}: cannot be read: {error.strerror}; check the disk") from error
        if got < needed:
            raise WeightsError(f"{self._path}: the file ends early; it was changed while being read")
        return np.frombuffer(slot, dtype=np.uint8, count=read.extent, offset=skew)


def _open_direct(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _read(handle: int, target: memoryview, offset: int) -> int:
    done = 0
    while done < len(target):
        count = os.preadv(handle, [target[done:]], offset + done)
        done += count
        if count % PAGE or not count:  # the end of the file
            break
    return done


def _convert(raw: Bytes, of: torch.dtype, to: torch.dtype) -> Bytes:
    source = torch.from_numpy(raw.copy()).view(of)  # a copy: its items are aligned
    return source.to(to).view(torch.uint8).numpy()
