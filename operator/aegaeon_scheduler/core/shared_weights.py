"""Weights of equal content share slabs: which models do on an instance, and what becomes free when some are unloaded.

Equal content is what the instance itself reported for its models, so it can carry out a load that names a twin.
"""

from __future__ import annotations

from collections.abc import Collection

from aegaeon_scheduler.core.domain import CommandId, ModelName
from aegaeon_scheduler.core.state import Instance, Model, SharedWeights, Weights


def shared_weights_for(inst: Instance, model: Model) -> SharedWeights | None:
    """The slabs that the model shows, or would show if it were loaded now, without taking any."""
    weights = inst.weights.get(model.name)
    if weights is not None and weights.unload is None:
        return weights.shared
    partner = twin(inst, model)
    return partner.shared if partner is not None else None


def twin(inst: Instance, model: Model) -> Weights | None:
    """Weights of the same content that are there under another name, else on their way.

    Loads behind one that failed are skipped: who joined them would be skipped as well, and so on for ever.
    """
    content = inst.contents.get(model.name)
    if not content:
        return None
    equal = [w for name, w in inst.weights.items() if name != model.name and inst.contents.get(name) == content]
    remaining = [w for w in equal if w.unload is None and (w.ready or not w.shared.broken)]
    return max(remaining, key=lambda w: w.ready, default=None)


def slabs_to_load(inst: Instance, model: Model) -> int:
    """The slabs that the book must grant to load its weights."""
    return 0 if shared_weights_for(inst, model) is not None else model.fp.weight_slabs


def given_by(going: Collection[Weights]) -> int:
    """Slabs that are free once all of these have gone."""
    distinct = {id(w.shared): w.shared for w in going}
    return sum(shared.slabs for shared in distinct.values() if ends_with(shared, going))


def ends_with(shared: SharedWeights, going: Collection[Weights]) -> bool:
    """True when no model shows the slabs after these, and those being unloaded anyway, are gone."""
    return all(w.unload is not None or w in going for w in shared.members)


def entered(inst: Instance, weights: Weights) -> None:
    """A report shows them in."""
    if weights in weights.shared.members and not weights.shared.booked:
        weights.shared.booked = True
        inst.book.weights += weights.shared.slabs


def show(inst: Instance, weights: Weights) -> Weights:
    """The model is there, or on its way. Both ends of the link change here and in `hide`."""
    inst.weights[weights.model.name] = weights
    weights.model.holders[inst.id] = inst
    return weights


def hide(inst: Instance, name: ModelName) -> Weights | None:
    """Remove a model's weights from the instance; its slabs are freed separately."""
    weights = inst.weights.pop(name, None)
    if weights is not None and weights.model.holders.get(inst.id) is inst:
        del weights.model.holders[inst.id]
    return weights


def unshow(inst: Instance, name: ModelName) -> None:
    """The model is not there, whatever was believed."""
    weights = hide(inst, name)
    if weights is not None:
        left(inst, weights)


def left(inst: Instance, weights: Weights) -> None:
    """They are gone, or never came; the slabs go with the last name."""
    shared = weights.shared
    if weights in shared.members:
        shared.members.remove(weights)
        if not shared.members and shared.booked:
            shared.booked = False
            inst.book.weights -= shared.slabs


def unloads_of(inst: Instance) -> dict[CommandId, int]:
    """In-flight unloads and the slabs that each will give back, but for those that a load counts on already."""
    pledged = inst.book.pledged()
    going = ((w.unload, w.gives) for w in inst.weights.values())
    return {id: slabs for id, slabs in going if id is not None and id not in pledged}
