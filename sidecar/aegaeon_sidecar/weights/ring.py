"""The stage ring's interface in Python: where each chunk of each file goes, and the hashes of chunks read.

Native threads do the work (native/src/stage.cpp). They call Python only to hash, at a model's first read, and to ask
whether to continue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from aegaeon_native import CudaDevice, FileSystemFullError, NativeError
from aegaeon_native import StageRing as NativeRing
from aegaeon_sidecar.domain.errors import CacheFullError, FillCancelledError, UnreadableError

CHUNK_BYTES = 4 << 20  # chunk, depth and readers: measured by benchmarks/load.py
DEPTH = 4
READERS = 2
LEAF_BYTES = 1 << 20  # files are hashed in leaves of this size, so that a hash does not depend on the chunks'
_FORMATS = {name: place for place, name in enumerate(NativeRing.formats())}

Bytes = NDArray[np.uint8]
Parts = NDArray[np.uint64]  # rows of (byte of the file, bytes, format, byte of the image)
NO_FILE = -1
NO_PARTS: Parts = np.empty((0, 4), dtype=np.uint64)
Progress = Callable[[int, int], None]


def parts_of(at: NDArray[np.int64], nbytes: NDArray[np.int64], dtype: str, to: NDArray[np.int64]) -> Parts:
    """Pieces of a tensor: `nbytes` at byte `at` of the file, of `dtype` (F32, F16, BF16); they go to byte `to` of the
    image."""
    return np.column_stack((at, nbytes, np.full_like(at, _FORMATS[dtype]), to)).astype(np.uint64)


@dataclass(frozen=True, slots=True)
class Read:
    """One chunk of a file: bytes [begin, begin + nbytes) are hashed; parts begin in it and may end 3 bytes later."""

    file: Path
    begin: int
    nbytes: int
    parts: Parts


@dataclass(slots=True)
class Job:
    """Reads to carry out: every place of `destinations` belongs to an image in `dtype` (F32, F16, BF16).

    So are `on_device`, an address in the memory of the ring's GPU, or 0, and the bytes of `into_file`, which is written
    instead of mapped: faults for its new pages cost more than hash and copy together. It is a descriptor, or NO_FILE.
    `opened`: descriptors of files, which are read instead of what their paths name.
    `progress(done, total)` in bytes of the files; `cancelled` is asked a few times a second. `digests`: when `hashed`,
    the BLAKE3 of each leaf of each read: three times as fast as SHA-256 on a core, which would be slower than the disk.
    """

    reads: Sequence[Read]
    destinations: Sequence[Bytes]
    dtype: str
    hashed: bool
    progress: Progress
    cancelled: Callable[[], bool]
    on_device: int = 0
    into_file: int = NO_FILE
    opened: Mapping[Path, int] = field(default_factory=dict)
    digests: list[list[bytes]] = field(default_factory=list, init=False)

    def digest(self, index: int, data: Bytes) -> None:
        """Hash what read `index` has brought."""
        self.digests[index] = [blake3(leaf.data).digest() for leaf in _leaves(self.reads[index].begin, data)]


class StageRing:
    """`depth` slots of `chunk_bytes`, `readers` of which are read into at a time. One `run` at a time.

    `gpu`: whose memory files are read into.
    """

    def __init__(
        self,
        chunk_bytes: int = CHUNK_BYTES,
        depth: int = DEPTH,
        readers: int = READERS,
        gpu: CudaDevice | None = None,
    ) -> None:
        """Raises NativeError where the GPU cannot lock the slots' pages."""
        self.chunk_bytes = chunk_bytes
        self.gpu = gpu
        self._ring = NativeRing(chunk_bytes, depth, readers, gpu)

    def run(self, job: Job) -> None:
        """Carry out every read into every destination; they are complete when it returns.

        Raises FillCancelledError, CacheFullError when `into_file` has no room, and UnreadableError when a file ends
        early or cannot be read: destinations are then half written, and no copy into them is under way.
        """
        total = sum(read.nbytes for read in job.reads)
        job.digests = [[] for _ in job.reads]
        files = {file: place for place, file in enumerate(dict.fromkeys(read.file for read in job.reads))}

        def watch(done: int) -> bool:
            job.progress(done, total)
            return done == total or not job.cancelled()

        with _errors(job.opened):
            complete = self._ring.run(
                [_name_of(file, job.opened) for file in files],
                _table((files[read.file], read.begin, read.nbytes, len(read.parts)) for read in job.reads),
                np.concatenate([NO_PARTS, *(read.parts for read in job.reads)]),
                [destination.ctypes.data for destination in job.destinations],
                job.into_file,
                job.on_device,
                _FORMATS[job.dtype],
                job.digest if job.hashed else None,
                watch,
            )
        if not complete:
            raise FillCancelledError("reading the weights was cancelled")

    def close(self) -> None:
        """Let go of the slots, and of their pages' locks; no `run` follows."""
        del self._ring


@contextmanager
def _errors(opened: Mapping[Path, int]) -> Iterator[None]:
    try:
        yield
    except FileSystemFullError as error:
        raise CacheFullError(f"the host cache's file system filled up meanwhile: {error}") from error
    except NativeError as error:
        text = _named(str(error), opened)
        raise UnreadableError(f"{text}; check the disk, or fetch the model again") from error


def _name_of(file: Path, opened: Mapping[Path, int]) -> str:
    """Return the path by which the ring reopens the same open file with O_DIRECT, even if its name changed."""
    return f"/proc/self/fd/{opened[file]}" if file in opened else str(file)


def _named(text: str, opened: Mapping[Path, int]) -> str:
    """The ring's message, with the file's path in place of its descriptor."""
    for file in opened:
        text = text.replace(f"{_name_of(file, opened)}:", f"{file}:")
    return text


def _leaves(begin: int, data: Bytes) -> Iterator[Bytes]:
    """`data`, which begins at byte `begin` of a file, cut where the file's leaves end."""
    start = 0
    while start < len(data):
        stop = start + LEAF_BYTES - (begin + start) % LEAF_BYTES
        yield data[start:stop]
        start = stop


def _table(rows: Iterable[tuple[int, int, int, int]]) -> NDArray[np.uint64]:
    return np.array(list(rows), dtype=np.uint64).reshape(-1, 4)
