"""Weights of equal content share their slabs: who does on an instance, and what is free when some of them have gone.

Equal means what the instance itself said of its models, so that it can do what it is asked to.
"""

from __future__ import annotations

from collections.abc import Collection

from aegaeon_scheduler.core.domain import ModelName
from aegaeon_scheduler.core.state import Instance, Model, Stay, Weights


def stay_for(inst: Instance, model: Model) -> Stay | None:
    """The slabs that the model shows, or would show if it were loaded now, without taking any."""
    weights = inst.weights.get(model.name)
    if weights is not None and weights.unload is None:
        return weights.stay
    partner = twin(inst, model)
    return partner.stay if partner is not None else None


def twin(inst: Instance, model: Model) -> Weights | None:
    """Weights of the same content that are there under another name, else on their way.

    Loads behind one that failed are skipped: who joined them would be skipped as well, and so on for ever.
    """
    content = inst.contents.get(model.name)
    if not content:
        return None
    others = [w for name, w in inst.weights.items() if name != model.name and inst.contents.get(name) == content]
    staying = [w for w in others if w.unload is None and (w.ready or not w.stay.broken)]
    return max(staying, key=lambda w: w.ready, default=None)


def slabs_to_load(inst: Instance, model: Model) -> int:
    """What the book must grant so that its weights are there."""
    return 0 if stay_for(inst, model) is not None else model.fp.weight_slabs


def given_by(going: Collection[Weights]) -> int:
    """Slabs that are free once all of these have gone."""
    stays = {id(w.stay): w.stay for w in going}
    return sum(stay.slabs for stay in stays.values() if ends_with(stay, going))


def ends_with(stay: Stay, going: Collection[Weights]) -> bool:
    """Whether no model shows the slabs once these, and those being unloaded anyway, have gone."""
    return all(w.unload is not None or w in going for w in stay.members)


def entered(inst: Instance, weights: Weights) -> None:
    """A report shows them in."""
    if weights in weights.stay.members and not weights.stay.booked:
        weights.stay.booked = True
        inst.book.weights += weights.stay.slabs


def unshow(inst: Instance, name: ModelName) -> None:
    """The model is not there, whatever was believed."""
    weights = inst.weights.pop(name, None)
    if weights is not None:
        left(inst, weights)


def left(inst: Instance, weights: Weights) -> None:
    """They are gone, or never came; the slabs go with the last name."""
    stay = weights.stay
    if weights in stay.members:
        stay.members.remove(weights)
        if not stay.members and stay.booked:
            stay.booked = False
            inst.book.weights -= stay.slabs
