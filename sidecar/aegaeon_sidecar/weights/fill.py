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
from aegaeon_sidecar.models.placement import Layout, Placement
from aegaeon_sidecar.models.weight_files import WeightFiles
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
    An image that is baked goes into a file alone.
    Returns the content hash when `hashed`, else "". Equal content means equal bytes in the image: it covers the bytes
    of the tensors, their places and their types. `progress(done, total)` in bytes of the files; a tensor of another
    dtype than the engine's is rounded to nearest even. Raises FillCancelledError, CacheFullError when `into_file`
    cannot grow, FilesChangedError when a file is not as it was looked at, or another WeightsError.
    """
    _begin(files, destinations)
    layout, dtype = files.layout, FILE_DTYPES[files.layout.dtype]
    reads = _cut(files.places, layout, ring.chunk_bytes)
    with files.opened() as opened:
        target = into_file if layout.bake is None else NO_FILE
        job = Job(reads, destinations, dtype, hashed, progress, cancelled, on_device, target, opened)
        ring.run(job)
        if layout.bake is not None and into_file != NO_FILE:
            layout.bake(into_file)
    return _content(files, job.digests) if hashed else ""


def _begin(files: WeightFiles, destinations: Sequence[Bytes]) -> None:
    """Raises WeightsError when one is too small."""
    if destinations and files.layout.bake is not None:
        raise WeightsError("an image that is baked goes into a file of the host cache alone")
    for destination in destinations:
        if destination.nbytes < files.layout.image_bytes:
            raise WeightsError(f"the image needs {files.layout.image_bytes} bytes, not {destination.nbytes}")
        _zero_padding(files.layout, files.places, destination)


def _cut(tensors: Mapping[FileTensor, Placement], layout: Layout, chunk_bytes: int) -> list[Read]:
    """All files in chunks, and where each chunk's tensors go."""
    by_file = groupby(tensors, key=lambda tensor: tensor.file)
    return [read for file, inside in by_file for read in chunks(file, list(inside), tensors, layout.dtype, chunk_bytes)]


def chunks(
    file: Path, tensors: list[FileTensor], to: Mapping[FileTensor, Placement], dtype: str, chunk_bytes: int
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
            parts.append(_parts(tensor, begin, stop, to[tensor], dtype))
        reads.append(Read(file, begin, stop - begin, np.concatenate([NO_PARTS, *parts])))
        begin = stop
    return reads


def _parts(tensor: FileTensor, begin: int, stop: int, to: Placement, dtype: str) -> Parts:
    """The tensor's items that begin within [begin, stop)."""
    size = ITEM_BYTES[tensor.dtype]
    first = max(-(-(begin - tensor.offset) // size), 0)
    last = min(-(-(stop - tensor.offset) // size), tensor.items)
    if last <= first:
        return NO_PARTS
    start, end, at = to.pieces(first, last, ENGINE_DTYPES[dtype])
    of = FILE_DTYPES[dtype] if to.raw else tensor.dtype  # what is in the image's format is copied, not converted
    return parts_of(tensor.offset + start * size, (end - start) * size, of, at)


def _zero_padding(layout: Layout, tensors: Mapping[FileTensor, Placement], destination: Bytes) -> None:
    """Zero the bytes that no item of the files fills: between the tensors, and where a rank has no part of a tensor."""
    item = ENGINE_DTYPES[layout.dtype]
    covered = [to.covered(tensor.items, item) for tensor, to in tensors.items()]
    at, nbytes = (np.concatenate([np.empty(0, dtype=np.int64), *column]) for column in zip(*covered, strict=True))
    end = 0
    for piece in np.argsort(at):
        destination[end : at[piece]] = 0
        end = max(end, int(at[piece] + nbytes[piece]))
    destination[end : layout.image_bytes] = 0


def _content(files: WeightFiles, digests: Sequence[Sequence[bytes]]) -> str:
    """BLAKE3, 32 hex digits, over the files' bytes, where their tensors are in them and where in the image.

    Of an image that is baked, over what made it.
    """
    layout = files.layout
    places = [(layout.files.index(t.file), t.offset, t.nbytes, t.dtype, to) for t, to in files.places.items()]
    made = (layout.made_by, files.config) if layout.bake is not None else ()
    digest = blake3(repr((layout.dtype, layout.weight_bytes, places, *made)).encode())
    for leaves in digests:
        digest.update(b"".join(leaves))
    return digest.hexdigest()[:32]
