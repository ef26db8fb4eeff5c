"""Which instances may take a model. Asked for at every arrival, and changed only when an instance or a model does.

What was found is kept until then, so no arrival looks at all instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from aegaeon_scheduler.core.domain import InstanceId, Phase, Role
from aegaeon_scheduler.core.state import Instance, Model


class Make(NamedTuple):
    """What decides whether a sequence of some length fits an instance."""

    role: Role
    slab_bytes: int
    slabs: int
    host_slabs: int


class Places(NamedTuple):
    """`open` are the instances that may take a model, and `roles` theirs; `makes` of all whose node has its weights;
    `phase` is how far it is where it is furthest."""

    open: tuple[Instance, ...]
    roles: frozenset[Role]
    makes: frozenset[Make]
    phase: Phase | None


class Fleet:
    """Owner of what was found. The code that changes what is known of an instance or a model tells it."""

    def __init__(self, instances: Mapping[InstanceId, Instance]) -> None:
        self._instances = instances
        self._known: dict[Model, Places] = {}

    def of(self, model: Model) -> Places:
        """Where the model may go."""
        known = self._known.get(model)
        if known is None:
            known = self._known[model] = self._find(model)
        return known

    def changed(self) -> None:
        """Instances came, went, or were closed to new work."""
        self._known.clear()

    def model_changed(self, model: Model) -> None:
        """It is cached on other instances than before, has another size, or is withdrawn."""
        self._known.pop(model, None)

    def agrees(self) -> bool:
        """Whether all that is kept is what would be found."""
        return all(places == self._find(model) for model, places in self._known.items())

    def _find(self, model: Model) -> Places:
        places = tuple(inst for inst in self._instances.values() if inst.has(model))
        cached = (inst for inst in self._instances.values() if inst.cached(model))
        makes = frozenset(Make(i.role, i.slab_bytes, i.slabs, i.host_slabs) for i in cached)
        phases = {inst.phases.get(model.name) for inst in self._instances.values()}
        phase = next((p for p in (Phase.CACHED, Phase.FETCHING, Phase.FAILED) if p in phases), None)
        return Places(places, frozenset(inst.role for inst in places), makes, phase)
