"""Which slabs hold whose weights. Models of one content show the same slabs; what the last one leaves is kept in free
slabs until they are allocated, and found again by the next load. The engine's lock is held in all of it."""

from __future__ import annotations

from collections.abc import Iterator

from aegaeon_native import OutOfSlabs
from aegaeon_sidecar.domain.errors import NoMemoryError
from aegaeon_sidecar.memory.tiers import Tier
from aegaeon_sidecar.weights.models import Model, Stay
from aegaeon_sidecar.weights.table import ModelTable


def take(table: ModelTable, device: Tier, model: Model, grant: int) -> int:
    """Slabs of its own for all of its weights; returns how many of them, from the beginning, hold its bytes still.

    Raises NoMemoryError; nothing has changed then.
    """
    assert model.range is not None  # it is registered
    needed, pool = model.range.slabs, device.pool
    if needed > grant:
        raise NoMemoryError(f"{model.name} takes {needed} slabs, {grant} were granted")
    left = next((stay for stay in _left(table, model) if stay.reclaim(pool)), Stay())
    kept = len(left.slabs)
    try:
        left.slabs += device.take(needed - kept)
    except OutOfSlabs as error:
        left.keep(pool)
        raise NoMemoryError(f"{model.name} takes {needed} slabs: {error}") from error
    left.models, model.stay = {model}, left
    return kept


def _left(table: ModelTable, model: Model) -> Iterator[Stay]:
    """What its last stay has left, then those of other models of its content."""
    equal = (m for m in table.models.values() if m.content == model.content != "")
    return (m.stay for m in (model, *equal) if m.stay is not None and not m.stay.models)


def share(table: ModelTable, model: Model, name: str) -> None:
    """Show the slabs of a resident model of the same content. Raises NoMemoryError."""
    twin = table.models.get(name)
    if twin is None or not twin.resident or twin.stay is None or twin.content != model.content or not model.content:
        raise NoMemoryError(f"{model.name} was to share the weights of {name}, which are not there, or not the same")
    twin.stay.models.add(model)
    model.stay = twin.stay


def leave(device: Tier, model: Model) -> None:
    """The model goes; with the last name the slabs are free, and what is in them is kept."""
    if model.stay is not None and _is_last(model.stay, model):
        model.stay.keep(device.pool)


def drop(device: Tier, model: Model) -> None:
    """The model goes, or never was all there; with the last name the slabs are free and nothing in them is kept."""
    if model.stay is not None and _is_last(model.stay, model):
        device.pool.give(model.stay.slabs)
        model.stay.slabs = []
    model.stay = None


def _is_last(stay: Stay, model: Model) -> bool:
    """Take the model off; whether it was the last one."""
    if model not in stay.models:
        return False
    stay.models.remove(model)
    return not stay.models


def shared(table: ModelTable) -> dict[str, str]:
    """Residents that show slabs together, each with one name for all of them."""
    residents = [model for model in table.models.values() if model.resident]
    stays = {m.name: m.stay for m in residents if m.stay is not None and len(m.stay.models) > 1}
    return {name: min(m.name for m in stay.models) for name, stay in stays.items()}
