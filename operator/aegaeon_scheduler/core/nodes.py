"""Which engines can hand KV over to each other, and which models are served because of that.

A model is served by a pair of engines: one computes its prompts, and one that it can reach decodes it. An engine that
does both is a pair by itself, and so is one that prefills a model which generates nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from aegaeon_scheduler.core.domain import Phase, Role
from aegaeon_scheduler.core.state import Instance, Model


class Apart(NamedTuple):
    """Why engines that have a model do not serve it; `phase`: how far it is where it would be decoded, None: no such
    engine is there."""

    phase: Phase | None
    reason: str


def reach(inst: Instance, other: Instance) -> bool:
    """True when KV can be handed over from one to the other: through host memory, which engines of a node share."""
    return inst.node == other.node


def connect(inst: Instance, instances: Iterable[Instance]) -> None:
    """Note the engines within reach of a new engine that do the other half of its work."""
    prefills = inst.role is Role.PREFILL
    for other in instances:
        if (other.role is Role.PREFILL) is not prefills and reach(inst, other):
            inst.partners.append(other)
            other.partners.append(inst)


def disconnect(inst: Instance) -> None:
    """Remove a lost engine from its partners. It keeps its own list, for the handling of its loss."""
    for other in inst.partners:
        other.partners.remove(inst)


def failed_beside(inst: Instance, model: Model) -> bool:
    """True when the model failed on all engines that would decode the prompts computed here."""
    if inst.role is not Role.PREFILL or model.pools or not model.failed or not inst.partners:
        return False
    return all(other.phases.get(model.name) is Phase.FAILED for other in inst.partners)


def apart(model: Model, prefilling: Instance) -> Apart:
    """Why nothing decodes what this engine would prefill of the model."""
    name, partners = model.name, [other for other in prefilling.partners if not other.draining]
    for coming in (Phase.FETCHING, Phase.ABSENT):
        for other in partners:
            if other.phases.get(name) is coming:
                return Apart(coming, f"{other.id}, which would decode it, does not have it yet")
    failed = [other for other in partners if other.phases.get(name) is Phase.FAILED]
    if failed and len(failed) == len(partners):
        return Apart(Phase.FAILED, model.failed.get(failed[0].id, f"it failed on {failed[0].id}"))
    where = f"{prefilling.id} of node {prefilling.node} prefills it"
    return Apart(None, f"{where}, and no engine that can take its KV over decodes it: start one on that node")
