"""Fills a model's image from its files, converting the dtype: afterwards a Load is one copy.

Files are read sequentially in chunks; each chunk lists its tensors and their offsets in the image.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
from blake3 import blake3

from aegaeon_sidecar.domain.errors import WeightsError
from aegaeon_sidecar.models.header import FILE_DTYPES, ITEM_BYTES, FileTensor
from aegaeon_sidecar.models.layout import ENGINE_DTYPES
from aegaeon_sidecar.models.placement import Layout
from aegaeon_sidecar.models.sharding import Deal
from aegaeon_sidecar.models.weight_files import WeightFiles, dtype_of
from aegaeon_sidecar.weights.ring import NO_FILE, NO_PARTS, Bytes, Job, Parts, Progress, Read, StageRing, parts_of


def fill(
    files: WeightFiles,
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
    NO_FILE: padding stays as it is there. Without any destination the files are read all the same, to be hashed.
    Returns the content hash when `hashed`, else "". Equal content means equal bytes in the image: it covers the bytes
    of the tensors, their places and their types. `progress(done, total)` in bytes of the files; a tensor of another
    dtype than the engine's is rounded to nearest even. Raises FillCancelledError, CacheFullError when `into_file`
    cannot grow, FilesChangedError when a file is not as it was looked at, or another WeightsError.
    """
    _begin(files, destinations)
    reads, dtype = _cut(files.places, files.layout, ring.chunk_bytes), FILE_DTYPES[dtype_of(files.layout)]
    with files.opened() as opened:
        job = Job(reads, destinations, dtype, hashed, progress, cancelled, on_device, into_file, opened)
        ring.run(job)
    return _content(files.layout, files.places, job.digests) if hashed else ""


def _begin(files: WeightFiles, destinations: Sequence[Bytes]) -> None:
    """Raises WeightsError when one is too small."""
    for destination in destinations:
        if destination.nbytes < files.layout.image_bytes:
            raise WeightsError(f"the image needs {files.layout.image_bytes} bytes, not {destination.nbytes}")
        _zero_padding(files.layout, files.places, destination)


def _cut(tensors: Mapping[FileTensor, Deal], layout: Layout, chunk_bytes: int) -> list[Read]:
    """All files in chunks, and where each chunk's tensors go."""
    item = ENGINE_DTYPES[dtype_of(layout)]
    by_file = groupby(tensors, key=lambda tensor: tensor.file)
    return [read for file, inside in by_file for read in chunks(file, list(inside), tensors, item, chunk_bytes)]


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
    item = ENGINE_DTYPES[dtype_of(layout)]
    for rank in range(layout.ranks):
        begin = end = rank * layout.weight_bytes
        for tensor, deal in sorted(tensors.items(), key=lambda entry: entry[1].offset):
            destination[end : begin + deal.offset] = 0
            end = begin + deal.offset + deal.held(rank, tensor.items) * item
        destination[end : begin + layout.weight_bytes] = 0


def _content(layout: Layout, tensors: Mapping[FileTensor, Deal], digests: Sequence[Sequence[bytes]]) -> str:
    """BLAKE3, 32 hex digits, over the files' bytes, where their tensors are in them and where in the image."""
    places = [(layout.files.index(t.file), t.offset, t.nbytes, t.dtype, to) for t, to in tensors.items()]
    whole = blake3(repr((dtype_of(layout), layout.weight_bytes, places)).encode())
    for leaves in digests:
        whole.update(b"".join(leaves))
    return whole.hexdigest()[:32]
