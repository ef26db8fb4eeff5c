"""Maps a model's slabs into its range, a few at a time: bytes are copied into those while the next ones are mapped."""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_native import NativeError, Range
from aegaeon_sidecar.domain.errors import EngineError
from aegaeon_sidecar.weights.models import Model

_AT_ONCE_BYTES = 64 << 20  # a link of 50 GB/s needs 1.3 ms for them; a driver less for the calls that map the next


def map_slabs(model: Model, slab_bytes: int) -> Iterator[int]:
    """Map what its range does not show yet; yields how many bytes of it, from the beginning on, are mapped so far.

    What is mapped there of an earlier load is unmapped where its place is needed. Without the engine's lock, as
    everything that takes longer than a look: steps of other models go on meanwhile. Raises EngineError; what the range
    shows then is in `model.shown`.
    """
    assert model.weights is not None  # it has its slabs
    assert model.range is not None  # it is registered
    slabs, shown = model.weights.slabs, model.shown
    at = next((i for i, (slab, old) in enumerate(zip(slabs, shown, strict=False)) if slab != old), len(shown))
    at_once = max(_AT_ONCE_BYTES // slab_bytes, 1)
    yield at * slab_bytes
    while at < len(slabs):
        some = slabs[at : at + at_once]
        try:
            _show(model.range, shown, at, some)
        except NativeError as error:
            raise EngineError(f"{model.name} could not be mapped: {error}") from error
        at += len(some)
        yield at * slab_bytes


def _show(weights: Range, shown: list[int], at: int, slabs: list[int]) -> None:
    """Raises NativeError; nothing is shown from `at` on then."""
    end = at + len(slabs)
    weights.unmap(at, len(shown[at:end]))
    try:
        weights.map(at, slabs)
    except NativeError:
        weights.unmap(end, len(shown[end:]))
        del shown[at:]
        raise
    shown[at:end] = slabs
