"""Slabs shared by models of equal content. When the last of them is unloaded, the pool keeps the content in free slabs
until they are allocated, and the next load takes it back. Callers hold the engine's lock."""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_native import OutOfSlabs
from aegaeon_sidecar.domain.errors import NoMemoryError
from aegaeon_sidecar.memory.tiers import Tier
from aegaeon_sidecar.weights.models import Model, SharedWeights
from aegaeon_sidecar.weights.table import ModelTable


def take(table: ModelTable, device: Tier, model: Model, grant: int) -> int:
    """Slabs of its own for all of its weights; returns how many of them, from the beginning, hold its bytes still.

    Raises NoMemoryError; nothing has changed then.
    """
    assert model.range is not None  # it is registered
    needed, pool = model.range.slabs, device.pool
    if needed > grant:
        raise NoMemoryError(f"{model.name} takes {needed} slabs, {grant} were granted")
    left = next((weights for weights in _left(table, model) if weights.reclaim(pool)), SharedWeights())
    kept = len(left.slabs)
    try:
        left.slabs += device.take(needed - kept)
    except OutOfSlabs as error:
        left.keep(pool)
        raise NoMemoryError(f"{model.name} takes {needed} slabs: {error}") from error
    left.models, model.weights = {model}, left
    return kept


def _left(table: ModelTable, model: Model) -> Iterator[SharedWeights]:
    """Weights that it left at its last unload, then those of other models with the same content."""
    equal = (m for m in table.models.values() if m.content == model.content != "")
    return (m.weights for m in (model, *equal) if m.weights is not None and not m.weights.models)


def share(table: ModelTable, model: Model, name: str) -> None:
    """Show the slabs of a resident model of the same content. Raises NoMemoryError."""
    twin = table.models.get(name)
    if twin is None or not twin.resident or twin.weights is None or twin.content != model.content or not model.content:
        raise NoMemoryError(f"{model.name} should share the weights of {name}, which are not resident or differ")
    twin.weights.models.add(model)
    model.weights = twin.weights


def leave(device: Tier, model: Model) -> None:
    """The model goes; with the last name the slabs are free, and what is in them is kept."""
    if model.weights is not None and _is_last(model.weights, model):
        model.weights.keep(device.pool)


def drop(device: Tier, model: Model) -> None:
    """The model goes, or never was all there; with the last name the slabs are free and nothing in them is kept."""
    if model.weights is not None and _is_last(model.weights, model):
        device.pool.give(model.weights.slabs)
        model.weights.slabs = []
    model.weights = None


def _is_last(weights: SharedWeights, model: Model) -> bool:
    """Take the model off; whether it was the last one."""
    if model not in weights.models:
        return False
    weights.models.remove(model)
    return not weights.models


def shared(table: ModelTable) -> dict[str, str]:
    """Residents that show slabs together, each with one name for all of them."""
    residents = [model for model in table.models.values() if model.resident]
    shown = {m.name: m.weights for m in residents if m.weights is not None and len(m.weights.models) > 1}
    return {name: min(m.name for m in weights.models) for name, weights in shown.items()}
