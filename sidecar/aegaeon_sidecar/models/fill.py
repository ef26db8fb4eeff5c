"""Weights from files into the image that a model's range holds, converted on the way: after this, Load is one copy.

Files are read from front to back in chunks; each chunk names the tensors in it and where they lie in the image.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from itertools import groupby
from pathlib import Path

import numpy as np
from blake3 import blake3

from aegaeon_sidecar.backends import Layout
from aegaeon_sidecar.errors import WeightsError
from aegaeon_sidecar.models.config import read_spec
from aegaeon_sidecar.models.files import find_tensors
from aegaeon_sidecar.models.header import FILE_DTYPES, ITEM_BYTES, FileTensor
from aegaeon_sidecar.models.layout import ENGINE_DTYPES, KvShape
from aegaeon_sidecar.models.sharding import Deal
from aegaeon_sidecar.weights.ring import NO_FILE, NO_PARTS, Bytes, Job, Parts, Progress, Read, StageRing, parts_of

_SETTLED_NS = 20_000_000  # a younger file may change again within the same tick of its file system's clock


def fill(
    directory: Path,
    layout: Layout,
    destinations: Sequence[Bytes],
    ring: StageRing,
    *,
    on_device: int = 0,
    into_file: int = NO_FILE,
    hashed: bool = True,
    progress: Progress = lambda done, total: None,
    cancelled: Callable[[], bool] = lambda: False,
) -> str:
    """Write every tensor at its place in each of `destinations` (uint8, at least layout.image_bytes), padding zeroed.

    And on the ring's GPU from the address `on_device` on, unless it is 0, and in the new file `into_file`, unless it is
    NO_FILE: padding stays as it is there.
    Returns the content hash when `hashed`, else "". Equal content means equal bytes in the image: it covers the bytes
    of the tensors, their places and their types. `progress(done, total)` in bytes of the files; a tensor of another
    dtype than the engine's is rounded to nearest even. Raises FillCancelledError, CacheFullError when `into_file`
    cannot grow, or WeightsError when the files changed since `layout` was made.
    """
    for destination in destinations:
        if destination.nbytes < layout.image_bytes:
            raise WeightsError(f"{directory}: the image needs {layout.image_bytes} bytes, not {destination.nbytes}")
    _let_settle(layout)
    before = identity(layout)
    tensors = _places(directory, layout)
    for destination in destinations:
        _zero_padding(layout, tensors, destination)
    reads = _cut(tensors, layout, ring.chunk_bytes)
    job = Job(reads, destinations, FILE_DTYPES[_dtype(layout)], hashed, progress, cancelled, on_device, into_file)
    ring.run(job)
    if identity(layout) != before:
        raise WeightsError(f"{directory}: the files changed while they were read; try again when they are complete")
    return _content(layout, tensors, job.digests) if hashed else ""


def _places(directory: Path, layout: Layout) -> dict[FileTensor, Deal]:
    """Every tensor in the order of the files' bytes, and where it goes in the image. Raises WeightsError."""
    found = find_tensors(directory, read_spec(directory))
    item = ENGINE_DTYPES[_dtype(layout)]
    to: dict[FileTensor, Deal] = {}
    for place in layout.tensors:
        tensor = found.get(place.name)
        if tensor is not None:
            to[tensor] = Deal.of(place.name, tensor.shape, place.offset, layout.ranks, layout.weight_bytes)
        if tensor is None or to[tensor].held(0, tensor.items) != place.nbytes // item:
            raise WeightsError(f"{place.name}: the files changed since the model was laid out; describe it again")
    return dict(sorted(to.items(), key=lambda entry: (entry[0].file, entry[0].offset)))


def _cut(tensors: dict[FileTensor, Deal], layout: Layout, chunk_bytes: int) -> list[Read]:
    """All files in chunks, and where each chunk's tensors go."""
    item = ENGINE_DTYPES[_dtype(layout)]
    by_file = groupby(tensors, key=lambda tensor: tensor.file)
    return [read for file, inside in by_file for read in chunks(file, list(inside), tensors, item, chunk_bytes)]


def identity(layout: Layout) -> str:
    """A name for the files as they are and for what is made of them, without reading them: 32 hex digits.

    Unchanged (device, inode, size, modification time) means unchanged bytes. Raises WeightsError when one is gone.
    """
    try:
        stats = [os.stat(file) for file in layout.files]
    except OSError as error:
        raise WeightsError(f"{error.filename}: {error.strerror}; fetch the model again") from error
    files = [(stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]
    return sha256(repr((files, layout.tensors, layout.ranks, _dtype(layout))).encode()).hexdigest()[:32]


def _let_settle(layout: Layout) -> None:
    """Wait until a later change of the files is sure to show in their times."""
    newest = max((os.stat(file).st_mtime_ns for file in layout.files if file.exists()), default=0)
    age_ns = time.time_ns() - newest
    if 0 <= age_ns < _SETTLED_NS:
        time.sleep((_SETTLED_NS - age_ns) / 1e9)  # a file system's clock is coarser than ours


def chunks(
    file: Path, tensors: list[FileTensor], to: Mapping[FileTensor, Deal], item: int, chunk_bytes: int
) -> list[Read]:
    """Chunks from the first tensor to the last, bounded by multiples of `chunk_bytes` in the file.

    What lies between wanted tensors is read past, for the hash.
    """
    begin, end = tensors[0].offset, tensors[-1].offset + tensors[-1].nbytes
    reads, first = [], 0
    while begin < end:
        stop = min(begin - begin % chunk_bytes + chunk_bytes, end)
        while tensors[first].offset + tensors[first].nbytes <= begin and first + 1 < len(tensors):
            first += 1
        parts: list[Parts] = []
        for tensor in tensors[first:]:
            if tensor.offset >= stop:
                break
            parts.append(_parts(tensor, begin, stop, to[tensor], item))
        reads.append(Read(file, begin, stop - begin, np.concatenate([NO_PARTS, *parts])))
        begin = stop
    return reads


def _parts(tensor: FileTensor, begin: int, stop: int, to: Deal, item: int) -> Parts:
    """The tensor's items that begin within [begin, stop)."""
    size = ITEM_BYTES[tensor.dtype]
    first = max(-(-(begin - tensor.offset) // size), 0)
    last = min(-(-(stop - tensor.offset) // size), tensor.items)
    if last <= first:
        return NO_PARTS
    start, end, at = to.pieces(first, last, item)
    return parts_of(tensor.offset + start * size, (end - start) * size, tensor.dtype, at)


def _zero_padding(layout: Layout, tensors: Mapping[FileTensor, Deal], destination: Bytes) -> None:
    """What no item of the files is written to: between the tensors, and where a rank's part of one has none."""
    item = ENGINE_DTYPES[_dtype(layout)]
    for rank in range(layout.ranks):
        begin = end = rank * layout.weight_bytes
        for tensor, deal in sorted(tensors.items(), key=lambda entry: entry[1].offset):
            destination[end : begin + deal.offset] = 0
            end = begin + deal.offset + deal.held(rank, tensor.items) * item
        destination[end : begin + layout.weight_bytes] = 0


def _content(layout: Layout, tensors: Mapping[FileTensor, Deal], digests: Sequence[Sequence[bytes]]) -> str:
    """BLAKE3, 32 hex digits, over the files' bytes, where their tensors are in them and where in the image."""
    places = [(layout.files.index(t.file), t.offset, t.nbytes, t.dtype, to) for t, to in tensors.items()]
    whole = blake3(repr((_dtype(layout), layout.weight_bytes, places)).encode())
    for leaves in digests:
        whole.update(b"".join(leaves))
    return whole.hexdigest()[:32]


def _dtype(layout: Layout) -> str:
    return KvShape.parse(layout.kv_shape).dtype
