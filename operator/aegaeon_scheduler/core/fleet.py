"""Which instances may take a model. Asked for at every arrival, and changed only when an instance or a model does.

What was found is kept until then, so no arrival looks at all instances.
"""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from aegaeon_scheduler.core.domain import Role
from aegaeon_scheduler.core.facts import Make
from aegaeon_scheduler.core.state import Instance, Model

_make, _order = attrgetter("make"), attrgetter("order")
_MOST_ALIKE = 64  # kinds of models that are kept: pools have few, by what their nodes have cached


class Places(NamedTuple):
    """`open` are the instances that may take a model, and `roles` theirs; `makes` of all whose node has its weights.

    `apart` would prefill it, had they one within reach that decodes it.
    """

    open: tuple[Instance, ...]
    roles: frozenset[Role]
    makes: frozenset[Make]
    apart: tuple[Instance, ...]

    @property
    def served(self) -> bool:
        """True when a pair of engines that can hand KV over serves it: an engine prefills only where another
        decodes."""
        return any(role is not Role.DECODE for role in self.roles)

    @property
    def halved(self) -> bool:
        """True when it is not served, although an engine would compute its prompts."""
        return bool(self.apart) and not self.served


class Fleet:
    """Owner of what was found. The code that changes what is known of an instance or a model tells it."""

    def __init__(self) -> None:
        self._known: dict[Model, Places] = {}
        self._alike: dict[object, Places] = {}  # by all that decides it: the first request of a model finds another's
        self.version = 0  # rises whenever what was found may have changed

    def of(self, model: Model) -> Places:
        """Where the model may go."""
        known = self._known.get(model)
        if known is None:
            known = self._known[model] = self._like_others(model)
        return known

    def _like_others(self, model: Model) -> Places:
        slabs = None if model.footprint is None else model.footprint.weight_slabs
        key = (tuple(model.cached.values()), model.pools, slabs)
        known = self._alike.get(key)
        if known is None:
            if len(self._alike) >= _MOST_ALIKE:
                self._alike.clear()
            known = self._alike[key] = self._find(model)
        return known

    def changed(self) -> None:
        """Instances came, went, or were closed to new work."""
        self._known.clear()
        self._alike.clear()
        self.version += 1

    def model_changed(self, model: Model) -> None:
        """Note that a model is cached on other instances than before, has another size, or is withdrawn."""
        self._known.pop(model, None)
        self.version += 1

    def agrees(self) -> bool:
        """True when all cached places are still correct."""
        return all(places == self._find(model) for model, places in self._known.items())

    def _find(self, model: Model) -> Places:
        cached = sorted(model.cached.values(), key=_order)
        places = tuple(inst for inst in cached if inst.has(model))
        roles = frozenset(make.role for make in set(map(_make, places)))
        apart = tuple(i for i in cached if not i.draining and not i.hands_over(model))
        return Places(places, roles, frozenset(map(_make, cached)), apart)
